"""swiglu(gate_up){activation}:  y = act(gate) * up

gate_up: [..., 2I], gate columns and then up columns.  y: [..., I].  act is one of ACTIVATIONS, which are words of
elementwise. The op has the name of the most common one, silu(g) = g / (1 + exp(-g)).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorwright.errors import GraphError
from tensorwright.ir.graph import Shape, Value
from tensorwright.ir.records import Instruction, Op, rows
from tensorwright.plugins.gated import ACTIVATIONS, gated
from tensorwright.plugins.rounding import round_to


def infer(inputs: list[Value], attrs: dict[str, Any]) -> list[tuple[str, Shape]]:
    """Returns half of gate_up's columns, of its type."""
    if attrs["activation"] not in ACTIVATIONS:
        raise GraphError(f"swiglu: activation must be one of {', '.join(ACTIVATIONS)}, got {attrs['activation']!r}")
    (gate_up,) = inputs
    columns = gate_up.shape[-1]
    if not isinstance(columns, int) or columns % 2:
        raise GraphError(f"swiglu: gate_up must have an even number of columns, got {columns}")
    return [(gate_up.dtype, (*gate_up.shape[:-1], columns // 2))]


def reference(inputs: list[np.ndarray], attrs: dict[str, Any], act_dtype: str) -> list[np.ndarray]:
    return [round_to(gated(inputs[0], attrs["activation"]).astype(np.float32), act_dtype)]


OP = Op(
    "swiglu",
    operands=(rows("x"),),
    attrs={"activation": "str"},
    infer=infer,
    reference=reference,
    kind="gate",
    per_token=True,
)
INSTRUCTION = Instruction(
    "swiglu",
    number=8,
    operands=OP.operands,
    results=(rows("y", narrow=True),),
    attrs=OP.attrs,
    words={"activation": ACTIVATIONS},
    reference=reference,
)
