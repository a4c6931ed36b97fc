"""rotary_table(positions, inv_freq):  concat(cos(p * f), sin(p * f), -1) * scale,  in float32 as the models do it

positions: [...], inv_freq: [half]  ->  [..., 2 * half] float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorwright.engine_format.weight_layouts import RAW
from tensorwright.errors import GraphError
from tensorwright.ir import dims
from tensorwright.ir.graph import Shape, Value
from tensorwright.ir.records import Instruction, Op, metadata, rows, shared


def infer(inputs: list[Value], attrs: dict[str, Any]) -> list[tuple[str, Shape]]:
    positions, inv_freq = inputs
    if inv_freq.rank != 1:
        raise GraphError(f"rotary_table: inv_freq must be a vector, got {list(inv_freq.shape)}")
    return [("float32", (*positions.shape, dims.mul(2, inv_freq.shape[0])))]


def reference(inputs: list[np.ndarray], attrs: dict[str, Any], act_dtype: str) -> list[np.ndarray]:
    positions, inv_freq = inputs
    angle = positions.astype(np.float32)[..., None] * inv_freq.astype(np.float32)
    # The angle is float32 by definition. The cosine is as exact as possible.
    exact = angle.astype(np.float64)
    table = np.concatenate([np.cos(exact), np.sin(exact)], axis=-1).astype(np.float32)
    return [table * np.float32(attrs["scale"])]


OP = Op(
    "rotary_table",
    operands=(rows("positions"), shared("inv_freq", wide=True)),
    results=(rows("table"),),
    attrs={"scale": "float"},
    infer=infer,
    reference=reference,
    per_token=True,
    flat_rows=True,
)
INSTRUCTION = Instruction(
    "rotary_table",
    number=4,
    operands=(metadata("positions"), shared("inv_freq", RAW)),
    results=OP.results,
    attrs=OP.attrs,
    reference=reference,
)
