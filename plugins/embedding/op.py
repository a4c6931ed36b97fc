"""embedding(table, ids):  y[t] = scale * table[ids[t]]

table: [V, C] of the activation type, ids: [T] integers in [0, V).  y: [T, C] float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorwright.engine_format.weight_layouts import PANELS
from tensorwright.ir.records import Instruction, metadata, shared
from tensorwright.plugins.rounding import round_to


def reference(inputs: list[np.ndarray], attrs: dict[str, Any], act_dtype: str) -> list[np.ndarray]:
    table, ids = inputs
    rows = round_to(table, act_dtype)[ids.astype(np.int64)]
    return [rows * np.float32(attrs["scale"])]


INSTRUCTION = Instruction(
    "embedding",
    number=1,
    operands=(shared("table", PANELS), metadata("ids")),
    attrs={"ids": "int", "scale": "float"},
    reference=reference,
)
