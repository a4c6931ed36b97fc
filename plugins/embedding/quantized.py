"""quantized_embedding(table, ids){format, scale}:  y[t] = scale * table'[ids[t]], the table as quantize.py rounds it

table: [V, C], ids: [T] integers in [0, V).  y: [T, C] float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorwright.engine_format.weight_formats import parse_format
from tensorwright.ir.graph import Shape, Value
from tensorwright.plugins.embedding import op as embedding
from tensorwright.plugins.quantized_matmul.quantize import dequantized, quantize_weights

NAME = "quantized_embedding"
ATTRS: dict[str, type] = {"format": str, "scale": float}


def infer(inputs: list[Value], attrs: dict[str, Any]) -> list[tuple[str, Shape]]:
    parse_format(attrs["format"])
    return embedding.infer(inputs, {"scale": attrs["scale"]})


def reference(inputs: list[np.ndarray], attrs: dict[str, Any], act_dtype: str) -> list[np.ndarray]:
    table, ids = inputs
    rows = np.asarray(table, np.float32)[ids.astype(np.int64)]
    stored = dequantized(
        quantize_weights(rows.reshape(-1, rows.shape[-1]), parse_format(attrs["format"])), rows.shape[-1]
    )
    return [stored.reshape(rows.shape) * np.float32(attrs["scale"])]
