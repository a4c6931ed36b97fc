"""Makes each layer of experts one operation of the trace, whatever its family.

transformers computes the experts of all families by one function, which a model's config names
(transformers.integrations.moe). Here this function is an operation of torch without arithmetic, so that the exporter
does not look inside; lower_aten.py makes the op `experts` of it. What stands between the two products of an expert is a
method of its class. It is never assumed: the method computes some rows, and a gate of the op must give the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.activations import ACT2CLS
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from tensorwright.errors import UnsupportedModelError
from tensorwright.plugins.experts.gate import apply_gate

OPERATION = "tensorwright.experts"
"""The name of the operation in an exported graph."""

_FUNCTION = "tensorwright"
"""The name of the function in configs of transformers."""

_ACTIVATIONS: dict[str, dict[str, Any]] = {
    "silu": {"activation": "silu"},
    "swish": {"activation": "silu"},
    "gelu": {"activation": "gelu"},
    "gelu_pytorch_tanh": {"activation": "gelu_tanh"},
    "relu": {"activation": "relu"},
    "relu2": {"activation": "relu", "squared": True},
}
"""Activations that experts may have: the names in transformers, and attributes of the op `experts`."""

_LIMITS = ("limit", "swiglu_limit")
_SLOPES = ("alpha", "swiglu_alpha")
"""The attributes of classes of experts that may be numbers of their gate."""

_FLAGS = ("is_transposed", "is_concatenated", "has_bias", "has_gate", "has_post_expert_norm")
"""The attributes that transformers gives all classes of experts."""


def make_experts_opaque(model: PreTrainedModel) -> None:
    """Makes every layer of experts call the opaque operation, in place.

    Raises UnsupportedModelError for experts that compute in another way than the op `experts`.
    """
    for name, module in model.named_modules():
        if not all(hasattr(module, flag) for flag in _FLAGS):
            continue  # Only classes of experts have these flags.
        if module.has_post_expert_norm:
            raise _refusal(name, module, "a norm after each expert")
        module.tensorwright_gate = _find_gate(name, module)
        module.config._experts_implementation = _FUNCTION


def _refusal(name: str, module: nn.Module, what: str) -> UnsupportedModelError:
    return UnsupportedModelError(f"{name} ({type(module).__name__}) has experts with {what}, which is not supported")


def _find_gate(name: str, module: Any) -> dict[str, Any]:
    """Returns the attributes of the op that say what stands between the products of a layer's experts."""
    if not module.has_gate:
        for attrs in _activations(module):
            if attrs["activation"] in ("relu", "silu", "gelu", "gelu_tanh"):
                return {**attrs, "gated": False}
        raise _refusal(name, module, f"the activation {type(module.act_fn).__name__}")
    wide = _rows_to_compare(module)
    with torch.no_grad():
        theirs = module._apply_gate(wide).numpy()
    if not module.is_concatenated:
        wide = torch.cat([wide[:, ::2], wide[:, 1::2]], dim=-1)
    for attrs in _gates(module):
        # Some classes compute in float32, which rounds by less than this.
        if np.allclose(apply_gate(wide.numpy(), attrs), theirs, rtol=1e-5, atol=1e-6):
            return attrs
    if hasattr(module, "act_fn") and not list(_activations(module)):
        raise _refusal(name, module, f"the activation {type(module.act_fn).__name__}")
    raise _refusal(name, module, "a gate of their own kind")


def _rows_to_compare(module: nn.Module) -> torch.Tensor:
    """Returns rows within the limits that a layer has, and rows beyond them."""
    rows = torch.randn(64, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return torch.cat([rows, *(rows * factor for factor in (8.0, *(2 * limit for limit in _numbers(module, _LIMITS))))])


def _numbers(module: nn.Module, names: tuple[str, ...]) -> list[float]:
    return [float(getattr(module, name)) for name in names if getattr(module, name, None)]


def _activations(module: nn.Module) -> Iterator[dict[str, Any]]:
    """Yields the attributes of the activation that a layer names; silu for a layer that names none."""
    if not hasattr(module, "act_fn"):
        yield {"activation": "silu"}
        return
    for theirs, ours in _ACTIVATIONS.items():
        found = ACT2CLS[theirs]
        if type(module.act_fn) is (found[0] if isinstance(found, tuple) else found):
            yield ours
            return


def _gates(module: nn.Module) -> Iterator[dict[str, Any]]:
    """Yields the gates that a layer may have, by the numbers that it holds."""
    for activation in _activations(module):
        if activation.get("squared", False):
            continue
        yield activation
        for limit in _numbers(module, _LIMITS):
            yield {**activation, "limit": limit}
            for slope in _numbers(module, _SLOPES):
                yield {**activation, "limit": limit, "slope": slope, "up_offset": 1.0}


def _call_operation(
    module: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    first = "gate_up_proj" if module.has_gate else "up_proj"
    gate = dict(module.tensorwright_gate)
    result: torch.Tensor = torch.ops.tensorwright.experts(
        hidden_states,
        top_k_index,
        top_k_weights,
        getattr(module, first),
        module.down_proj,
        getattr(module, f"{first}_bias") if module.has_bias else None,
        module.down_proj_bias if module.has_bias else None,
        gate.pop("activation"),
        module.is_transposed,
        not module.is_concatenated,
        list(gate),
        [float(number) for number in gate.values()],
    )
    return result


torch.library.define(
    OPERATION.replace(".", "::"),
    "(Tensor x, Tensor index, Tensor weights, Tensor up, Tensor down, Tensor? up_bias, Tensor? down_bias, "
    "str activation, bool transposed, bool alternating, str[] names, float[] numbers) -> Tensor",
)
"""transposed: the matrices are [E, H, 2I] and [E, I, H]. alternating: rows of gate and up take turns. names, numbers:
the other attributes of the gate."""


@torch.library.register_fake(OPERATION.replace(".", "::"))
def _shape_of_result(x: torch.Tensor, *operands: Any) -> torch.Tensor:
    return torch.empty_like(x)


ALL_EXPERTS_FUNCTIONS.register(_FUNCTION, _call_operation)
