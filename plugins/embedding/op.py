"""embedding(table, ids):  y[t] = scale * table[ids[t] - first]

table: [V, C] of the activation type, ids: [T] integers.  y: [T, C] float32.  A table of tokens may be a part of a
larger one, `rows` of its rows from `first` on; then y is zeros for the ids of other rows. rows is 0 for a whole table.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorwright.engine_format.weight_layouts import PANELS
from tensorwright.ir.records import Instruction, metadata, shared
from tensorwright.plugins.rounding import round_to


def reference(inputs: list[np.ndarray], attrs: dict[str, Any], act_dtype: str) -> list[np.ndarray]:
    table, ids = inputs
    rows, inside = rows_of(round_to(table, act_dtype), ids, attrs.get("first", 0), attrs.get("rows", 0))
    return [rows * np.float32(attrs["scale"]) * inside]


def rows_of(table: np.ndarray, ids: np.ndarray, first: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rows of a table, or any row for an id outside, and whether the ids are inside, float32 [T, 1]."""
    places = ids.astype(np.int64) - first
    inside = (places >= 0) & (places < rows) if rows else np.full(ids.shape, True)
    return table[np.where(inside, places, 0)], inside[..., None].astype(np.float32)


INSTRUCTION = Instruction(
    "embedding",
    number=1,
    operands=(shared("table", PANELS), metadata("ids")),
    attrs={"ids": "int", "first": "int", "rows": "int", "scale": "float"},
    reference=reference,
)
