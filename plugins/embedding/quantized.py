"""quantized_embedding(table, ids){format, scale}:  y[t] = scale * table'[ids[t]], the table as quantize.py rounds it

table: [V, C], ids: [T] integers.  y: [T, C] float32.  With `first`, the table is a part of a larger one (op.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorwright.engine_format.weight_layouts import QUANTIZED
from tensorwright.errors import GraphError
from tensorwright.ir.graph import Shape, Value
from tensorwright.ir.records import Instruction, Op, metadata, rows, shared
from tensorwright.plugins.embedding.op import rows_of
from tensorwright.plugins.quantized_matmul.quantize import dequantized, quantize_weights


def infer(inputs: list[Value], attrs: dict[str, Any]) -> list[tuple[str, Shape]]:
    """Returns float32, with the shape of ids and the columns of the table."""
    table, ids = inputs
    if table.rank != 2:
        raise GraphError(f"quantized_embedding: the table must be [vocabulary, width], got {list(table.shape)}")
    return [("float32", (*ids.shape, table.shape[1]))]


def reference(inputs: list[np.ndarray], attrs: dict[str, Any], act_dtype: str) -> list[np.ndarray]:
    table, ids = inputs
    table = np.asarray(table, np.float32)
    first = attrs.get("first", 0)
    rows, inside = rows_of(table, ids, first, attrs.get("rows", 0) or (len(table) if "first" in attrs else 0))
    stored = dequantized(quantize_weights(rows.reshape(-1, rows.shape[-1]), attrs["format"]), rows.shape[-1])
    return [stored.reshape(rows.shape) * np.float32(attrs["scale"]) * inside]


OP = Op(
    "quantized_embedding",
    operands=(shared("table", wide=True), rows("ids")),
    attrs={"format": "format", "scale": "float"},
    optional_attrs={"first": "int"},
    stages=("cached",),
    infer=infer,
    reference=reference,
    kind="lookup",
    per_token=True,
    flat_rows=True,
)
INSTRUCTION = Instruction(
    "quantized_embedding",
    number=1,
    shares_number_of="embedding",
    operands=(shared("table", QUANTIZED), metadata("ids")),
    attrs={"format": "format", "ids": "int", "first": "int", "rows": "int", "scale": "float"},
    reference=reference,
)
