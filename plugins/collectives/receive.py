"""receive(positions){message, columns}:  y = the rows that the stage before sends under the number `message`

positions: [tokens], which says how many rows there are.  y: [tokens, columns] float32.
"""

from __future__ import annotations

from typing import Any

from tensorwright.ir.graph import Shape, Value
from tensorwright.ir.records import Instruction, Op, metadata, rows


def infer(inputs: list[Value], attrs: dict[str, Any]) -> list[tuple[str, Shape]]:
    """Returns float32, with a row for each position."""
    (positions,) = inputs
    return [("float32", (positions.shape[0], attrs["columns"]))]


OP = Op(
    "receive",
    operands=(rows("positions"),),
    attrs={"message": "int", "columns": "int"},
    stages=("cached",),
    infer=infer,
    moves=True,
    per_token=True,
    flat_rows=True,
)
INSTRUCTION = Instruction("receive", number=39, operands=(metadata("positions"),), attrs={"message": "int"}, moves=True)
