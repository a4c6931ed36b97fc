"""rms_norm(x, w):  y = x / sqrt(mean(x*x, -1) + eps) * (w + weight_offset)

x: [..., C], w: [C].  weight_offset is 0, or 1 if the checkpoint stores the weight's difference from one.
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
    x, w = inputs
    check_weight(x, w)
    return [(x.dtype, x.shape)]


def check_weight(x: Value, w: Value) -> None:
    if w.shape != x.shape[-1:]:
        raise GraphError(f"rms_norm: w must be [{x.shape[-1]}] for x {list(x.shape)}, got {list(w.shape)}")


def normalise(x: np.ndarray, w: np.ndarray, eps: float, weight_offset: float) -> np.ndarray:
    """Normalises with float64 arithmetic throughout. The result is not rounded."""
    x64 = x.astype(np.float64)
    inverse = 1.0 / np.sqrt(np.mean(x64 * x64, axis=-1, keepdims=True) + eps)
    return x64 * inverse * (w.astype(np.float64) + weight_offset)


def reference(inputs: list[np.ndarray], attrs: dict[str, Any], act_dtype: str) -> list[np.ndarray]:
    x, w = inputs
    return [round_to(normalise(x, w, attrs["eps"], attrs["weight_offset"]).astype(np.float32), act_dtype)]


OP = Op(
    "rms_norm",
    operands=(rows("x"), shared("w", wide=True)),
    attrs={"eps": "float", "weight_offset": "float"},
    infer=infer,
    reference=reference,
    kind="norm",
    per_token=True,
    sums=True,
)
