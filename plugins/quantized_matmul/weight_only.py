"""weight_only_linear(x, w, bias?){format}:  y = x w'^T + bias, only w rounded, as quantize.py does it

x: [T, K], w: [N, K] as the checkpoint has it, bias: [N].  y: [T, N].  x, the scales and w' (value times scale) are of
the activation type, sums float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorwright.engine_format.weight_formats import W8A8, WeightFormat
from tensorwright.errors import GraphError
from tensorwright.ir.graph import Shape, Value
from tensorwright.ir.records import Op, rows, shared
from tensorwright.plugins.quantized_matmul.linear import product_type
from tensorwright.plugins.quantized_matmul.quantize import Quantized, dequantized, quantize_weights
from tensorwright.plugins.rounding import round_to


def infer(inputs: Sequence[Value | None], attrs: dict[str, Any]) -> list[tuple[str, Shape]]:
    """Returns [T, N] of x's type."""
    if attrs["format"] == W8A8:
        raise GraphError("weight_only_linear: the format must leave activations as they are, and w8a8 does not")
    return product_type("weight_only_linear", inputs)


def restored(w: np.ndarray | Quantized, fmt: WeightFormat, k: int, act_dtype: str) -> np.ndarray:
    """Returns the quantized weights as float32 [N, k], in numbers of the activation type."""
    made = w if isinstance(w, Quantized) else quantize_weights(np.asarray(w, np.float32), fmt)
    return round_to(dequantized(Quantized(made.values, round_to(made.scales, act_dtype)), k), act_dtype)


def reference(inputs: Sequence[Any], attrs: dict[str, Any], act_dtype: str) -> list[np.ndarray]:
    """Computes the product. w may be quantized already."""
    x, w, *more = inputs
    bias = more[0] if more else None
    rows = round_to(x, act_dtype)
    y = round_to(rows @ restored(w, attrs["format"], rows.shape[-1], act_dtype).T, act_dtype)
    return [y if bias is None else round_to(y + round_to(bias, act_dtype), act_dtype)]


OP = Op(
    "weight_only_linear",
    operands=(rows("x"), shared("w", wide=True), shared("bias?")),
    attrs={"format": "format"},
    stages=("cached",),
    infer=infer,
    reference=reference,
    kind="product",
    per_token=True,
    sums=True,
)
