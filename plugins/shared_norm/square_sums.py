"""square_sums(x){start, columns, offset, size, runs}:  the sums of the squares of a rank's part of columns

All ranks of a stage together have `runs` runs of `size` columns each, side by side. This rank has `columns` of them,
from the number `offset` on; in x they begin at column `start`. It may count none, where another has the same columns.

    y[t, i] = sum of x[t, c]^2 over the columns c of this rank that lie in run i;  0 if none does

x: [T, C] float32.  y: [T, runs] float32.  The squares of a run are summed in 16 lanes: lane l adds up the columns
l, l + 16, ... of those that the rank has of the run. Then lane i adds lane i + 8, then i + 4, i + 2 and i + 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorwright.errors import GraphError
from tensorwright.ir.graph import Shape, Value
from tensorwright.ir.records import Instruction, Op, rows


def infer(inputs: list[Value], attrs: dict[str, Any]) -> list[tuple[str, Shape]]:
    """Returns float32, with a column for each run. Raises GraphError for columns that are not there."""
    (x,) = inputs
    start, columns, offset, size, runs = (attrs[name] for name in ("start", "columns", "offset", "size", "runs"))
    fits = x.rank == 2 and isinstance(x.shape[1], int) and min(start, columns, offset) >= 0 and min(size, runs) >= 1
    if not fits or start + columns > int(x.shape[1]) or offset + columns > size * runs:
        raise GraphError(
            f"square_sums: {columns} columns from {start} on must lie in x {list(x.shape)}, and from {offset} on in "
            f"{runs} runs of {size}"
        )
    return [("float32", (x.shape[0], runs))]


def pieces(columns: int, offset: int, size: int) -> list[tuple[int, int, int]]:
    """Returns where the columns of a rank lie: (run, first column, end) for each run that they touch."""
    found, at = [], 0
    while at < columns:
        run = (offset + at) // size
        end = min(columns, (run + 1) * size - offset)
        found.append((run, at, end))
        at = end
    return found


def reference(inputs: list[np.ndarray], attrs: dict[str, Any], act_dtype: str) -> list[np.ndarray]:
    """Sums in float64."""
    (x,) = inputs
    y = np.zeros((len(x), attrs["runs"]), np.float64)
    for run, begin, end in pieces(attrs["columns"], attrs["offset"], attrs["size"]):
        part = x[:, attrs["start"] + begin : attrs["start"] + end].astype(np.float64)
        y[:, run] = (part * part).sum(axis=1)
    return [y.astype(np.float32)]


OP = Op(
    "square_sums",
    operands=(rows("x"),),
    attrs={"start": "int", "columns": "int", "offset": "int", "size": "int", "runs": "int"},
    stages=("cached",),
    infer=infer,
    reference=reference,
    per_token=True,
    sums=True,
)
INSTRUCTION = Instruction(
    "square_sums", number=40, operands=(rows("x"),), attrs=OP.attrs, reference=reference, sums=True
)
