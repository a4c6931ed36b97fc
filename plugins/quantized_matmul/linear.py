"""quantized_linear(x, w, bias?){format}:  y = x' w'^T + bias, both operands as quantize.py rounds them

Formats that keep activations leave x as it is.

x: [T, K] of the activation type, w: [N, K] as the checkpoint has it, bias: [N].  y: [T, N] float32.
Sums are exact within a group and float32 across groups, ascending.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from tensorwright.engine_format.weight_formats import WeightFormat
from tensorwright.errors import GraphError
from tensorwright.ir.graph import Shape, Value
from tensorwright.ir.records import Op, rows, shared
from tensorwright.plugins.quantized_matmul.quantize import (
    Quantized,
    in_groups,
    quantize_activations,
    quantize_weights,
)
from tensorwright.plugins.rounding import round_to


def infer(inputs: Sequence[Value | None], attrs: dict[str, Any]) -> list[tuple[str, Shape]]:
    """Returns [T, N] of x's type."""
    return product_type("quantized_linear", inputs)


def product_type(name: str, inputs: Sequence[Value | None]) -> list[tuple[str, Shape]]:
    """Returns the type of x w^T + bias. Raises GraphError, which names the op, for operands that do not fit."""
    x, w, bias = (*inputs, None)[:3]
    if x is None or w is None:
        raise GraphError(f"{name}: x and w must be present")
    if w.rank != 2 or w.shape[1] != x.shape[-1]:
        raise GraphError(f"{name}: w must be [N, {x.shape[-1]}] for x {list(x.shape)}, got {list(w.shape)}")
    if bias is not None and bias.shape != w.shape[:1]:
        raise GraphError(f"{name}: bias must be [{w.shape[0]}], got {list(bias.shape)}")
    return [(x.dtype, (*x.shape[:-1], w.shape[0]))]


class PackedMatrix(Protocol):
    """A quantized matrix that multiplies with the bits of `product`."""

    def product(self, x: np.ndarray, /) -> np.ndarray: ...


def product(x: np.ndarray, w: np.ndarray | Quantized | PackedMatrix, fmt: WeightFormat) -> np.ndarray:
    """Returns float32 [T, N], with the kernels' order of sums; each step's fused rounding is done in float64."""
    if not isinstance(w, (np.ndarray, Quantized)):
        return w.product(x)
    b = w if isinstance(w, Quantized) else quantize_weights(np.asarray(w, np.float32), fmt)
    if fmt.keeps_activations:
        a = Quantized(in_groups(x, fmt), np.ones((len(x), fmt.groups(x.shape[-1])), np.float32))
    else:
        a = quantize_activations(x, fmt)
    total = np.zeros((len(x), len(b.values)), np.float32)
    groups = a.scales.shape[1]
    values = b.values.reshape(len(b.values), groups, -1)
    for i in range(groups):
        dot = (a.values[:, i].astype(np.float64) @ values[:, i].astype(np.float64).T).astype(np.float32)
        scale = a.scales[:, i, None] * b.scales[None, :, i]
        total = (dot.astype(np.float64) * scale + total).astype(np.float32)
    return total


def reference(inputs: Sequence[Any], attrs: dict[str, Any], act_dtype: str) -> list[np.ndarray]:
    """Computes the product. w may be quantized already."""
    x, w, *more = inputs
    bias = more[0] if more else None
    rows = round_to(x, act_dtype)
    y = product(rows.reshape(-1, rows.shape[-1]), w, attrs["format"])
    y = y.reshape(*x.shape[:-1], y.shape[1])
    return [y if bias is None else y + np.asarray(bias, np.float32)]


OP = Op(
    "quantized_linear",
    operands=(rows("x"), shared("w"), shared("bias?")),
    attrs={"format": "format"},
    stages=("cached",),
    infer=infer,
    reference=reference,
    kind="product",
    per_token=True,
    sums=True,
)
