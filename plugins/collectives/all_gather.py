"""all_gather(x){first, columns}:  y = the columns that all ranks of a stage have, in the order of their numbers

x: [T, C] float32, the columns from `first` on of y: [T, columns].  Every rank gets all of y.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorwright.errors import GraphError
from tensorwright.ir.graph import Shape, Value
from tensorwright.ir.records import Instruction, Op, rows


def infer(inputs: list[Value], attrs: dict[str, Any]) -> list[tuple[str, Shape]]:
    """Returns the type of x, with all columns."""
    (x,) = inputs
    first, columns = attrs["first"], attrs["columns"]
    if x.rank != 2 or not isinstance(x.shape[1], int) or first < 0 or first + x.shape[1] > columns:
        raise GraphError(f"all_gather: x {list(x.shape)} must be {columns} columns from {first} on, or fewer")
    return [(x.dtype, (x.shape[0], columns))]


def across(inputs: list[list[np.ndarray]], attrs: list[dict[str, Any]]) -> list[np.ndarray]:
    """Returns the result of each rank, from the operands of each. Raises GraphError if the parts leave a gap."""
    end = 0
    for (x,), own in zip(inputs, attrs, strict=True):
        if own["first"] != end:
            raise GraphError(f"all_gather: columns from {own['first']} on must follow those to {end}")
        end += x.shape[1]
    if end != attrs[0]["columns"]:
        raise GraphError(f"all_gather: the parts have {end} of {attrs[0]['columns']} columns")
    return [np.concatenate([x for (x,) in inputs], axis=1)] * len(inputs)


OP = Op(
    "all_gather",
    operands=(rows("x"),),
    attrs={"first": "int", "columns": "int"},
    stages=("cached",),
    infer=infer,
    across=across,
    per_token=True,
)
INSTRUCTION = Instruction("all_gather", number=37, operands=(rows("x"),), attrs={"first": "int"}, across=across)
