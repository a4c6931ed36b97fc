"""Makes each layer of experts one operation of the trace, whatever its family.

transformers computes the experts of all families by one function, which a model's config names
(transformers.integrations.moe). Here this function is an operation of torch without arithmetic, so that the exporter
does not look inside; lower_aten.py makes the op `experts` of it. What stands between the two products of an expert is a
method of its class. It is never assumed: the method computes some rows, and a gate of the op must give the same.
"""

from __future__ import annotations

import math
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
from tensorwright.plugins.experts.op import compute, multiply_floats

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
        module.tensorwright_gate = find_gate(name, module)
        module.config._experts_implementation = _FUNCTION


def _refusal(name: str, module: nn.Module, what: str) -> UnsupportedModelError:
    return UnsupportedModelError(f"{name} ({type(module).__name__}) has experts with {what}, which is not supported")


def find_gate(name: str, module: Any) -> dict[str, Any]:
    """Returns the attributes of the op that say what stands between the products of a layer's experts.

    A class without the flags of transformers has a gate, and its rows are in order.
    """
    if not getattr(module, "has_gate", True):
        return {**find_activation(name, module), "gated": False}
    wide = _rows_to_compare(module)
    with torch.no_grad():
        theirs = module._apply_gate(wide).numpy()
    if not getattr(module, "is_concatenated", True):
        wide = torch.cat([wide[:, ::2], wide[:, 1::2]], dim=-1)
    for attrs in _gates(module):
        # Some classes compute in float32, which rounds by less than this.
        if np.allclose(apply_gate(wide.numpy(), attrs), theirs, rtol=1e-5, atol=1e-6):
            return attrs
    find_activation(name, module)
    raise _refusal(name, module, "a gate of their own kind")


def find_activation(name: str, module: Any) -> dict[str, Any]:
    """Returns the attributes of the op that say which activation a layer of experts has."""
    for attrs in _activations(module):
        return attrs
    raise _refusal(name, module, f"the activation {type(_activation(module)).__name__}")


def _activation(module: Any) -> Any:
    """Returns the activation that a layer holds, or None."""
    return getattr(module, "act_fn", getattr(module, "activation_fn", None))


def _rows_to_compare(module: nn.Module) -> torch.Tensor:
    """Returns rows within the limits that a layer has, and rows beyond them."""
    rows = torch.randn(64, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return torch.cat([rows, *(rows * factor for factor in (8.0, *(2 * limit for limit in _numbers(module, _LIMITS))))])


def _numbers(module: nn.Module, names: tuple[str, ...]) -> list[float]:
    numbers = (getattr(module, name, None) or math.inf for name in names)
    return [float(number) for number in numbers if number < math.inf]


def _activations(module: nn.Module) -> Iterator[dict[str, Any]]:
    """Yields the attributes of the activation that a layer names; silu for a layer that names none."""
    activation = _activation(module)
    if activation is None:
        yield {"activation": "silu"}
        return
    for theirs, ours in _ACTIVATIONS.items():
        found = ACT2CLS[theirs]
        if type(activation) is (found[0] if isinstance(found, tuple) else found):
            yield ours
            return
    if activation is nn.functional.silu:  # Some classes name torch's function.
        yield _ACTIVATIONS["silu"]


def _gates(module: nn.Module) -> Iterator[dict[str, Any]]:
    """Yields the gates that a layer may have, by the numbers that it holds."""
    for activation in _activations(module):
        if activation.get("squared", False):
            continue
        yield activation
        for limit in _numbers(module, _LIMITS):
            yield {**activation, "limit": limit}
            yield {**activation, "limit": limit, "limits_activated": True}
            for slope in _numbers(module, _SLOPES):
                yield {**activation, "limit": limit, "slope": slope, "up_offset": 1.0}


def _call_operation(
    module: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    first = "gate_up_proj" if module.has_gate else "up_proj"
    biases = (getattr(module, f"{first}_bias"), module.down_proj_bias) if module.has_bias else (None, None)
    matrices = (getattr(module, first), module.down_proj)
    forms = (module.is_transposed, not module.is_concatenated)
    return call_operation(hidden_states, top_k_index, top_k_weights, *matrices, module.tensorwright_gate, biases, forms)


def call_operation(
    rows: torch.Tensor,
    index: torch.Tensor,
    weights: torch.Tensor,
    up: torch.Tensor,
    down: torch.Tensor,
    gate: dict[str, Any],
    biases: tuple[torch.Tensor | None, torch.Tensor | None] = (None, None),
    forms: tuple[bool, bool] = (False, False),
) -> torch.Tensor:
    """Calls the opaque operation. forms: whether the matrices are transposed, and whether gate and up alternate."""
    more = {key: float(number) for key, number in gate.items() if key != "activation"}
    operands = (rows, index, weights, up, down, *biases, gate["activation"], *forms)
    result: torch.Tensor = torch.ops.tensorwright.experts(*operands, list(more), list(more.values()))
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


@torch.library.impl(OPERATION.replace(".", "::"), "CPU")
def _compute(
    x: torch.Tensor, index: torch.Tensor, weights: torch.Tensor, up: torch.Tensor, down: torch.Tensor, *more: Any
) -> torch.Tensor:
    """Computes plain experts without biases, for a comparison with layers of transformers."""
    up_bias, down_bias, activation, transposed, alternating, names, numbers = more
    assert up_bias is None
    assert down_bias is None
    assert not transposed
    assert not alternating
    operands = [tensor.detach().numpy() for tensor in (x, index, weights, up, down)]
    attrs = {"activation": activation, **dict(zip(names, numbers, strict=True))}
    return torch.from_numpy(compute(operands, attrs, multiply_floats)).to(x.dtype)


ALL_EXPERTS_FUNCTIONS.register(_FUNCTION, _call_operation)
