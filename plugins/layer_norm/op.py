"""layer_norm(x, w, b?):  y = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * (w + weight_offset) + b

Means are over the last dimension.  x: [..., C], w and b: [C], or [H, C] for x [..., H, C] if every head has its own.
weight_offset is 0, or 1 if the checkpoint stores the weight's difference from one.  An absent b is zero.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorwright.errors import GraphError
from tensorwright.ir.graph import Shape, Value
from tensorwright.ir.records import Op, rows, shared
from tensorwright.plugins.rounding import round_to


def infer(inputs: list[Value], attrs: dict[str, Any]) -> list[tuple[str, Shape]]:
    """Returns x's type and shape, for y."""
    x, w, *bias = inputs
    check_weights(x, w, bias[0] if bias else None)
    return [(x.dtype, x.shape)]


def check_weights(x: Value, w: Value, b: Value | None) -> None:
    """Raises GraphError unless w is a vector or has one row per head, and b, if there is one, has w's shape."""
    fits = 1 <= w.rank <= min(2, x.rank) and w.shape == x.shape[x.rank - w.rank :]
    if not fits or x.shape[-1] == 0:
        raise GraphError(
            f"layer_norm: w must be the last one or two dimensions of x {list(x.shape)}, got {list(w.shape)}"
        )
    if b is not None and b.shape != w.shape:
        raise GraphError(f"layer_norm: b must have w's shape {list(w.shape)}, got {list(b.shape)}")


def normalise(x: np.ndarray, w: np.ndarray, b: np.ndarray | None, eps: float, weight_offset: float) -> np.ndarray:
    """Normalises with float64 arithmetic throughout. The result is not rounded."""
    centred = x.astype(np.float64)
    centred -= np.mean(centred, axis=-1, keepdims=True)
    inverse = 1.0 / np.sqrt(np.mean(centred * centred, axis=-1, keepdims=True) + eps)
    y = centred * inverse * (w.astype(np.float64) + weight_offset)
    return y if b is None else y + b.astype(np.float64)


def reference(inputs: list[Any], attrs: dict[str, Any], act_dtype: str) -> list[np.ndarray]:
    x, w, b = (*inputs, None)[:3]
    return [round_to(normalise(x, w, b, attrs["eps"], attrs["weight_offset"]).astype(np.float32), act_dtype)]


OP = Op(
    "layer_norm",
    operands=(rows("x"), shared("w", wide=True), shared("b?", wide=True)),
    attrs={"eps": "float", "weight_offset": "float"},
    stages=("traced", "fused", "cached"),
    infer=infer,
    reference=reference,
    kind="norm",
    per_token=True,
    sums=True,
)
