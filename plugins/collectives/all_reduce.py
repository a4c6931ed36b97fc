"""all_reduce(x):  y = the sum of x over all ranks of a stage, in the order of their numbers

x, y: the same shape, float32.  Every rank gets the same bits: ((x_0 + x_1) + x_2) + ..., element by element.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorwright.ir.graph import Shape, Value
from tensorwright.ir.records import InPlace, Instruction, Op, rows


def infer(inputs: list[Value], attrs: dict[str, Any]) -> list[tuple[str, Shape]]:
    """Returns the type and shape of x."""
    (x,) = inputs
    return [(x.dtype, x.shape)]


def across(inputs: list[list[np.ndarray]], attrs: list[dict[str, Any]]) -> list[np.ndarray]:
    """Returns the result of each rank, from the operands of each."""
    total = inputs[0][0].astype(np.float32)
    for (x,) in inputs[1:]:
        total = total + x.astype(np.float32)
    return [total] * len(inputs)


OP = Op("all_reduce", operands=(rows("x"),), stages=("cached",), infer=infer, across=across, per_token=True, sums=True)
INSTRUCTION = Instruction(
    "all_reduce",
    number=36,
    operands=(rows("x"),),
    across=across,
    sums=True,
    in_place=(InPlace("y", ("x",)),),
)
