"""rotary(x, table):  pairs (x[i], x[i + half]) of the first rotary_dim dimensions rotate by the table's angles

x: [1, S, heads, D], table: [1, S, rotary_dim] = cos | sin, half = rotary_dim / 2.  Later dimensions do not change.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorwright.errors import GraphError
from tensorwright.ir.graph import Shape, Value
from tensorwright.ir.records import Op, rows
from tensorwright.plugins.rounding import round_to


def infer(inputs: list[Value], attrs: dict[str, Any]) -> list[tuple[str, Shape]]:
    """Returns x's type and shape."""
    x, table = inputs
    n = attrs["rotary_dim"]
    if table.shape[-1] != n:
        raise GraphError(f"rotary: the table must have rotary_dim {n} columns, got {list(table.shape)}")
    if n % 2 or not isinstance(x.shape[-1], int) or n > x.shape[-1]:
        raise GraphError(f"rotary: rotary_dim must be even and at most head_dim {x.shape[-1]}, got {n}")
    return [(x.dtype, x.shape)]


def rotate(x: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Rotates x [..., heads, D] by table [..., rotary_dim] -> float32; products are rounded before they are added."""
    half = table.shape[-1] // 2
    cos, sin = table[..., None, :half], table[..., None, half:]
    x = x.astype(np.float32)
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)


def reference(inputs: list[np.ndarray], attrs: dict[str, Any], act_dtype: str) -> list[np.ndarray]:
    x, table = inputs
    return [round_to(rotate(x, table), act_dtype)]


OP = Op(
    "rotary",
    operands=(rows("x"), rows("table")),
    attrs={"rotary_dim": "int"},
    stages=("fused",),
    infer=infer,
    reference=reference,
)
