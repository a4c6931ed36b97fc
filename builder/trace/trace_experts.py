"""Makes each layer of experts one operation of the trace, whatever its family.

transformers computes the experts of all families by one function, which a model's config names
(transformers.integrations.moe). Here this function is an operation of torch without arithmetic, so that the exporter
does not look inside; lower_aten.py makes the op `experts` of it.
"""

from __future__ import annotations

import torch
from transformers import PreTrainedModel
from transformers.activations import ACT2CLS
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS, _default_apply_gate

from tensorwright.errors import UnsupportedModelError

OPERATION = "tensorwright.experts"
"""The name of the operation in an exported graph."""

_FUNCTION = "tensorwright"
"""The name of the function in configs of transformers."""

_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
"""Activations that experts may have: the names in transformers, and ours."""

_FLAGS = {
    "is_transposed": (False, "matrices that are stored transposed"),
    "is_concatenated": (True, "rows of gate and up that alternate"),
    "has_bias": (False, "biases"),
    "has_gate": (True, "no gate"),
    "has_post_expert_norm": (False, "a norm after each expert"),
}
"""The flags of transformers' experts classes, with the value that is supported and the name of the other one."""


def make_experts_opaque(model: PreTrainedModel) -> None:
    """Makes every layer of experts call the opaque operation, in place.

    Raises UnsupportedModelError for experts that compute in another way than the op `experts`.
    """
    for name, module in model.named_modules():
        if not hasattr(module, "is_concatenated") or not hasattr(module, "has_gate"):
            continue  # Only classes of experts have these flags.
        for flag, (supported, what) in _FLAGS.items():
            if getattr(module, flag) != supported:
                raise _refusal(name, module, what)
        if type(module)._apply_gate is not _default_apply_gate:
            raise _refusal(name, module, "a gate of their own kind")
        _activation(name, module)
        module.config._experts_implementation = _FUNCTION


def _refusal(name: str, module: torch.nn.Module, what: str) -> UnsupportedModelError:
    return UnsupportedModelError(f"{name} ({type(module).__name__}) has experts with {what}, which is not supported")


def _activation(name: str, module: torch.nn.Module) -> str:
    """Returns our name of the activation of a layer's gates."""
    for theirs, ours in _ACTIVATIONS.items():
        if type(module.act_fn) is ACT2CLS[theirs]:
            return ours
    raise _refusal(name, module, f"the activation {type(module.act_fn).__name__}")


def _call_operation(
    module: torch.nn.Module, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    result: torch.Tensor = torch.ops.tensorwright.experts(
        hidden_states,
        top_k_index,
        top_k_weights,
        module.gate_up_proj,
        module.down_proj,
        _activation("", module),
    )
    return result


torch.library.define(
    OPERATION.replace(".", "::"),
    "(Tensor x, Tensor index, Tensor weights, Tensor gate_up, Tensor down, str activation) -> Tensor",
)


@torch.library.register_fake(OPERATION.replace(".", "::"))
def _shape_of_result(
    x: torch.Tensor,
    index: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    activation: str,
) -> torch.Tensor:
    return torch.empty_like(x)


ALL_EXPERTS_FUNCTIONS.register(_FUNCTION, _call_operation)
