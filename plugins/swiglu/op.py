"""swiglu(gate_up){activation}:  y = act(gate) * up

gate_up: [..., 2I], gate columns and then up columns.  y: [..., I].  act is one of ACTIVATIONS, elementwise's words for
them; named after the one that most models have, silu(g) = g / (1 + exp(-g)).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorwright.errors import GraphError
from tensorwright.ir.graph import Shape, Value
from tensorwright.plugins.elementwise.op import UNARY
from tensorwright.plugins.rounding import round_to

NAME = "swiglu"
ATTRS: dict[str, type] = {"activation": str}
ACTIVATIONS = ("silu", "gelu_tanh", "gelu", "relu")
"""By number: tw_activation of plugins/common/kernel_types.h."""


def infer(inputs: list[Value], attrs: dict[str, Any]) -> list[tuple[str, Shape]]:
    """Half of gate_up's columns, of its type."""
    if attrs["activation"] not in ACTIVATIONS:
        raise GraphError(f"swiglu: activation must be one of {', '.join(ACTIVATIONS)}, got {attrs['activation']!r}")
    (gate_up,) = inputs
    columns = gate_up.shape[-1]
    if not isinstance(columns, int) or columns % 2:
        raise GraphError(f"swiglu: gate_up must have an even number of columns, got {columns}")
    return [(gate_up.dtype, (*gate_up.shape[:-1], columns // 2))]


def gated(gate_up: np.ndarray, activation: str) -> np.ndarray:
    """[..., 2I] -> act(gate) * up, float64."""
    gate, up = np.split(gate_up.astype(np.float64), 2, axis=-1)
    with np.errstate(over="ignore"):  # exp(-g) may be infinite: silu is then -0
        product: np.ndarray = UNARY[activation][1](gate) * up
    return product


def reference(inputs: list[np.ndarray], attrs: dict[str, Any], act_dtype: str) -> list[np.ndarray]:
    return [round_to(gated(inputs[0], attrs["activation"]).astype(np.float32), act_dtype)]
