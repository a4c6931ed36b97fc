"""split_columns(x, columns):  taken = the columns of x with these numbers, and rest = x with zeros in them

x: [T, C], columns: float32 [k], whole numbers from 0 to C - 1.  rest: [T, C], taken: [T, k], both of x's type.

The rest is read by a product that rounds it: large numbers that are not in it do not make its scale larger.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorwright.errors import GraphError
from tensorwright.ir.graph import Shape, Value
from tensorwright.ir.records import InPlace, Instruction, Op, rows, shared


def infer(inputs: list[Value], attrs: dict[str, Any]) -> list[tuple[str, Shape]]:
    """Returns the type and shape of the rest, which are x's, and of what is taken."""
    x, columns = inputs
    if columns.rank != 1 or columns.dtype != "float32":
        raise GraphError(f"split_columns: columns must be float32 [k], got {columns.dtype}{list(columns.shape)}")
    return [(x.dtype, x.shape), (x.dtype, (*x.shape[:-1], columns.shape[0]))]


def reference(inputs: list[np.ndarray], attrs: dict[str, Any], act_dtype: str) -> list[np.ndarray]:
    x, columns = inputs
    chosen = columns.astype(np.int64)
    rest = x.copy()
    rest[..., chosen] = 0
    return [rest, x[..., chosen]]


RESULTS = (rows("rest"), rows("taken"))
OP = Op(
    "split_columns",
    operands=(rows("x"), shared("columns", wide=True)),
    results=RESULTS,
    stages=("cached",),
    infer=infer,
    reference=reference,
    per_token=True,
)
INSTRUCTION = Instruction(
    "split_columns",
    number=33,
    operands=(rows("x"), shared("columns")),
    results=RESULTS,
    reference=reference,
    in_place=(InPlace("rest", ("x",)),),
)
