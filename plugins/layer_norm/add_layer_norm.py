"""add_layer_norm(x, residual, w, b?) -> (y, sum):  sum = x + residual,  y = layer_norm(sum, w, b)

x, residual, sum: [..., C], w, b: [C].  The norm reads the sum as it is stored, in float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorwright.errors import GraphError
from tensorwright.ir.graph import Shape, Value
from tensorwright.ir.records import Op, rows, shared
from tensorwright.plugins.layer_norm.op import check_weights, normalise
from tensorwright.plugins.rounding import round_to


def infer(inputs: list[Value], attrs: dict[str, Any]) -> list[tuple[str, Shape]]:
    """Returns x's type and shape, for y and for sum."""
    x, residual, w, *bias = inputs
    if residual.shape != x.shape:
        raise GraphError(f"add_layer_norm: residual {list(residual.shape)} must have the shape of x {list(x.shape)}")
    check_weights(x, w, bias[0] if bias else None)
    return [(x.dtype, x.shape), (x.dtype, x.shape)]


def reference(inputs: list[Any], attrs: dict[str, Any], act_dtype: str) -> list[np.ndarray]:
    x, residual, w, b = (*inputs, None)[:4]
    total = x.astype(np.float32) + residual.astype(np.float32)
    y = normalise(total, w, b, attrs["eps"], attrs["weight_offset"]).astype(np.float32)
    return [round_to(y, act_dtype), total]


OP = Op(
    "add_layer_norm",
    operands=(rows("x"), rows("residual"), shared("w"), shared("b?")),
    results=(rows("y"), rows("sum")),
    attrs={"eps": "float", "weight_offset": "float"},
    infer=infer,
    reference=reference,
    kind="norm",
    per_token=True,
    sums=True,
)
