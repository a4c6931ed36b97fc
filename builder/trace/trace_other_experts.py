"""Makes operations of the layers of experts that transformers computes outside of the function for all families.

Such a layer loops over the experts that its rows take, or computes all experts for all rows. Here a function stands in
its place that computes the same by the opaque operation of trace_experts.py, for each of a few forms. A form is never
assumed: a small layer of the same class computes some rows both ways, and must give the same.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import PreTrainedModel

from tensorwright.builder.trace.trace_experts import call_operation, find_activation, find_gate
from tensorwright.errors import UnsupportedModelError

ROWS, WIDTH, INNER, EXPERTS, TAKEN = 12, 8, 6, 5, 2
"""The sizes of the small layers."""


@dataclass(frozen=True)
class Form:
    """compute: what stands for `forward` of a layer, which is its first argument; the gate's attributes are its second.

    holder: the path of the module inside that has the activation; empty for a layer that has a gate itself, and reads
    what a router chose. sizes: what makes the model's config small, by the paths of its fields.
    """

    compute: Callable[..., Any]
    holder: str
    sizes: dict[str, int]


def make_other_experts_opaque(model: PreTrainedModel) -> None:
    """Makes the layers of experts that have a form of FORMS call the opaque operation, in place.

    Raises UnsupportedModelError for a layer whose class has the name of a form, and computes something else.
    """
    compared: set[type] = set()
    for name, module in model.named_modules():
        form = FORMS.get(type(module).__name__)
        if form is None:
            continue
        if type(module) not in compared:
            _compare(name, module, form, model.config.get_text_config())
            compared.add(type(module))
        gate = _gate_of(name, module, form)
        module.forward = partial(form.compute, module, gate)


def _gate_of(name: str, module: nn.Module, form: Form) -> dict[str, Any]:
    return find_activation(name, module.get_submodule(form.holder)) if form.holder else find_gate(name, module)


def _compare(name: str, module: Any, form: Form, config: Any) -> None:
    """Raises UnsupportedModelError unless a small layer of the class of `module` computes what `form` does."""
    generator = torch.Generator().manual_seed(0)
    try:
        config = copy.deepcopy(config)
        for path, size in form.sizes.items():
            part, _, field = path.rpartition(".")
            setattr(getattr(config, part) if part else config, field, size)
        with torch.no_grad():
            small = type(module)(config).float().eval()
            for tensor in small.parameters():
                tensor.copy_(torch.randn(tensor.shape, generator=generator) / 2)
            operands = [torch.randn(1, ROWS, WIDTH, generator=generator)]
            if not form.holder:
                index = torch.arange(ROWS * TAKEN).view(ROWS, TAKEN) % EXPERTS
                operands = [operands[0][0], index, torch.rand(ROWS, TAKEN, generator=generator)]
            gate = _gate_of(name, small, form)
            theirs, ours = small(*operands), form.compute(small, gate, *operands)
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:
        raise _refusal(name, module) from error
    theirs, ours = (x[0] if isinstance(x, tuple) else x for x in (theirs, ours))
    if theirs.shape != ours.shape or not torch.allclose(theirs, ours, rtol=1e-4, atol=1e-5):
        raise _refusal(name, module)


def _refusal(name: str, module: nn.Module) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{name} ({type(module).__name__}) computes its experts in another way than is known of this class, which is "
        "not supported"
    )


def _compute_llama4(module: Any, gate: dict[str, Any], hidden_states: torch.Tensor) -> Any:
    """Stands for a layer whose experts read rows times their scores, and which has an expert for all tokens besides.

    The class computes all experts for all rows, which are zero where an expert is not chosen.
    """
    rows = hidden_states.reshape(-1, module.hidden_dim)
    logits = F.linear(rows, module.router.weight)
    values, index = torch.topk(logits, module.top_k, dim=1)
    experts = module.experts
    up, down = experts.gate_up_proj.transpose(1, 2), experts.down_proj.transpose(1, 2)
    scaled = {**gate, "scales_input": True}
    mixed = call_operation(rows, index, torch.sigmoid(values.float()).to(rows.dtype), up, down, scaled)
    return module.shared_expert(rows) + mixed, logits


def _compute_dbrx(module: Any, gate: dict[str, Any], hidden_states: torch.Tensor) -> torch.Tensor:
    """Stands for a layer whose experts have their rows in three matrices: the gates of all, w1, what they gate, v1, and
    the transposed second products, w2."""
    weights, index = module.route_tokens_to_experts(module.router(hidden_states))
    experts, matrices = module.experts, module.experts.mlp
    shape = (experts.num_experts, experts.ffn_hidden_size, experts.hidden_size)
    up = torch.cat([matrices.w1.view(shape), matrices.v1.view(shape)], dim=1)
    down = matrices.w2.view(shape).transpose(1, 2)
    rows = hidden_states.reshape(-1, experts.hidden_size)
    return call_operation(rows, index, weights, up, down, gate).view(hidden_states.shape)


def _compute_longcat(module: Any, gate: dict[str, Any], hidden_states: torch.Tensor) -> torch.Tensor:
    """Stands for a layer of which some experts give what they read."""
    _, weights, index = module.router(hidden_states)
    experts = module.experts
    rows = hidden_states.reshape(-1, experts.hidden_size)
    up = experts.gate_up_proj[: experts.num_routed_experts]
    more = {**gate, "identities": experts.zero_expert_num} if experts.zero_expert_num else gate
    return call_operation(rows, index, weights, up, experts.down_proj, more).view(hidden_states.shape)


def _compute_step(
    module: Any, gate: dict[str, Any], rows: torch.Tensor, index: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Stands for a layer of which transformers' function for all families does not know."""
    return call_operation(rows, index, weights, module.gate_up_proj, module.down_proj, gate)


FORMS = {
    "Step3p7Experts": Form(
        _compute_step,
        "",
        {"hidden_size": WIDTH, "moe_intermediate_size": INNER, "num_local_experts": EXPERTS},
    ),
    "LongcatFlashMoE": Form(
        _compute_longcat,
        "experts",
        {
            "hidden_size": WIDTH,
            "expert_ffn_hidden_size": INNER,
            "n_routed_experts": EXPERTS,
            "moe_topk": TAKEN,
            "zero_expert_num": EXPERTS,
        },
    ),
    "DbrxFFN": Form(
        _compute_dbrx,
        "experts.mlp",
        {
            "ffn_config.hidden_size": WIDTH,
            "ffn_config.ffn_hidden_size": INNER,
            "ffn_config.moe_num_experts": EXPERTS,
            "ffn_config.moe_top_k": TAKEN,
        },
    ),
    "Llama4TextMoe": Form(
        _compute_llama4,
        "experts",
        {
            "hidden_size": WIDTH,
            "intermediate_size": INNER,
            "num_local_experts": EXPERTS,
            "num_experts_per_tok": TAKEN,
        },
    ),
}
"""The name of a class -> how it computes."""
