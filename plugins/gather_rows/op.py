"""gather_rows(x, logit_rows):  y[r] = x[logit_rows[r]]

x: [tokens, C], logit_rows: int32 [rows].  y: [rows, C].
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorwright.errors import GraphError
from tensorwright.ir.graph import Shape, Value
from tensorwright.ir.records import Instruction, Op, metadata, rows


def infer(inputs: list[Value], attrs: dict[str, Any]) -> list[tuple[str, Shape]]:
    """Returns the type and shape of x, with rows in place of tokens."""
    x, rows = inputs
    if rows.rank != 1:
        raise GraphError(f"gather_rows: logit_rows must be a vector, got {list(rows.shape)}")
    return [(x.dtype, (*rows.shape, *x.shape[1:]))]


def reference(inputs: list[np.ndarray], attrs: dict[str, Any], act_dtype: str) -> list[np.ndarray]:
    x, rows = inputs
    return [x[rows.astype(np.int64)]]


OP = Op(
    "gather_rows",
    operands=(rows("x"), metadata("logit_rows")),
    stages=("cached",),
    infer=infer,
    reference=reference,
    sequence_aware=True,
)
INSTRUCTION = Instruction("gather_rows", number=7, operands=OP.operands, reference=reference, sequence_aware=True)
