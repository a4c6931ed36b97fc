"""send(x){message}:  gives x to the next stage, which receives it under the same number;  y = x

x, y: [tokens, C] float32.  What receives is the rank of the next stage that has the same number there.
"""

from __future__ import annotations

from typing import Any

from tensorwright.ir.graph import Shape, Value
from tensorwright.ir.records import InPlace, Instruction, Op, rows


def infer(inputs: list[Value], attrs: dict[str, Any]) -> list[tuple[str, Shape]]:
    """Returns the type and shape of x."""
    (x,) = inputs
    return [(x.dtype, x.shape)]


OP = Op(
    "send",
    operands=(rows("x"),),
    attrs={"message": "int"},
    stages=("cached",),
    infer=infer,
    moves=True,
    per_token=True,
)
INSTRUCTION = Instruction(
    "send",
    number=38,
    operands=(rows("x"),),
    attrs={"message": "int"},
    moves=True,
    in_place=(InPlace("y", ("x",)),),
)
