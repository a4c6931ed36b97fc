"""swiglu(gate_up):  y = silu(gate) * up,  silu(g) = g / (1 + exp(-g))

gate_up: [..., 2I], gate columns and then up columns.  y: [..., I].
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorwright.builder.ir.graph import Shape, Value
from tensorwright.errors import GraphError
from tensorwright.plugins.rounding import round_to

NAME = "swiglu"
ATTRS: dict[str, type] = {}


def infer(inputs: list[Value], attrs: dict[str, Any]) -> list[tuple[str, Shape]]:
    """Half of gate_up's columns, of its type."""
    (gate_up,) = inputs
    columns = gate_up.shape[-1]
    if not isinstance(columns, int) or columns % 2:
        raise GraphError(f"swiglu: gate_up must have an even number of columns, got {columns}")
    return [(gate_up.dtype, (*gate_up.shape[:-1], columns // 2))]


def silu_gate(gate_up: np.ndarray) -> np.ndarray:
    """[..., 2I] -> silu(gate) * up, float64."""
    gate, up = np.split(gate_up.astype(np.float64), 2, axis=-1)
    with np.errstate(over="ignore"):  # exp(-g) may be infinite: silu is then -0
        return gate / (1.0 + np.exp(-gate)) * up


def reference(inputs: list[np.ndarray], attrs: dict[str, Any], act_dtype: str) -> list[np.ndarray]:
    return [round_to(silu_gate(inputs[0]).astype(np.float32), act_dtype)]
