"""head_products(x, w):  y_h = x_h W_h^T for each head h, every head with a matrix of its own

T rows, H heads, S columns of a head of x, of which the first K are read (K <= S), N columns of a head of y.
x: [T, H * S], w: [H, N, K].  y: [T, H * N].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorwright.engine_format.weight_layouts import PANELS
from tensorwright.errors import GraphError
from tensorwright.ir.graph import Shape, Value
from tensorwright.ir.records import Instruction, Op, rows, shared
from tensorwright.plugins.rounding import round_to


def infer(inputs: Sequence[Value | None], attrs: dict[str, Any]) -> list[tuple[str, Shape]]:
    """Returns [T, H * N] of x's type. Raises GraphError for operands that do not fit."""
    x, w = inputs
    if x is None or w is None:
        raise GraphError("head_products: x and w must be present")
    columns = x.shape[-1]
    if w.rank != 3 or not isinstance(columns, int) or columns % int(w.shape[0]):
        raise GraphError(f"head_products: w must be [H, N, K] with H heads in x {list(x.shape)}, got {list(w.shape)}")
    heads, width, inner = (int(size) for size in w.shape)
    if columns // heads < inner:
        raise GraphError(f"head_products: {heads} heads of x {list(x.shape)} must have {inner} columns or more each")
    return [(x.dtype, (*x.shape[:-1], heads * width))]


def heads_of(x: np.ndarray, heads: int, inner: int) -> np.ndarray:
    """Returns the columns of x that are read, [T, heads, inner]."""
    return x.reshape(-1, heads, x.shape[-1] // heads)[:, :, :inner]


def reference(inputs: Sequence[Any], attrs: dict[str, Any], act_dtype: str) -> list[np.ndarray]:
    """Sums in float64 and rounds once at the end."""
    x, w = inputs
    read = heads_of(x, w.shape[0], w.shape[2]).astype(np.float64)
    y = np.einsum("thk,hnk->thn", read, w.astype(np.float64))
    return [round_to(y.reshape(*x.shape[:-1], w.shape[0] * w.shape[1]).astype(np.float32), act_dtype)]


OP = Op(
    "head_products",
    operands=(rows("x"), shared("w")),
    stages=("fused", "cached"),
    infer=infer,
    reference=reference,
    kind="head product",
    per_token=True,
    sums=True,
)
INSTRUCTION = Instruction(
    "head_products",
    number=16,
    operands=(rows("x"), shared("w", PANELS)),
    attrs={"heads": "int"},
    results=(rows("y", narrow=True),),
    reference=reference,
    kind="head product",
    sums=True,
)
