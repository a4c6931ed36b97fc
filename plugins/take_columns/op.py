"""take_columns(x, columns):  y[t, i] = x[t, columns[i]]

x: [T, C], columns: float32 [k], whole numbers from 0 to C - 1.  y: [T, k], of x's type.

A checkpoint with act-order forms groups of columns that are not neighbours. Its codes are kept with the columns of a
group side by side, and the product reads its inputs in the same order.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorwright.errors import GraphError
from tensorwright.ir.graph import Shape, Value
from tensorwright.ir.records import Instruction, Op, rows, shared


def infer(inputs: list[Value], attrs: dict[str, Any]) -> list[tuple[str, Shape]]:
    """Returns the type of x, and its shape with k columns."""
    x, columns = inputs
    if columns.rank != 1 or columns.dtype != "float32":
        raise GraphError(f"take_columns: columns must be float32 [k], got {columns.dtype}{list(columns.shape)}")
    return [(x.dtype, (*x.shape[:-1], columns.shape[0]))]


def reference(inputs: list[np.ndarray], attrs: dict[str, Any], act_dtype: str) -> list[np.ndarray]:
    x, columns = inputs
    return [x[..., columns.astype(np.int64)]]


OP = Op(
    "take_columns",
    operands=(rows("x"), shared("columns", wide=True)),
    stages=("cached",),
    infer=infer,
    reference=reference,
    per_token=True,
)
INSTRUCTION = Instruction(
    "take_columns",
    number=34,
    operands=(rows("x"), shared("columns")),
    reference=reference,
)
