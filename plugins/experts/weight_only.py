"""weight_only_experts(x, index, weights, up, down, up_bias?, down_bias?){activation, format, ...}:  experts, only their
matrices rounded, as weight_only_linear rounds them

The shapes are those of plugins/experts/op.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorwright.engine_format.weight_formats import WeightFormat
from tensorwright.ir.records import Op
from tensorwright.plugins.experts import op as experts
from tensorwright.plugins.quantized_matmul.linear import PackedMatrix
from tensorwright.plugins.quantized_matmul.weight_only import restored


def multiply_in(fmt: WeightFormat, act_dtype: str) -> experts.Multiply:
    """Returns the product with the restored numbers of a matrix [N, K], which may be one that multiplies by itself."""

    def multiply(x: np.ndarray, w: np.ndarray | PackedMatrix) -> np.ndarray:
        if not isinstance(w, np.ndarray):
            return w.product(x)
        return experts.multiply_floats(x, restored(w, fmt, x.shape[-1], act_dtype))

    return multiply


def reference(inputs: Sequence[Any], attrs: dict[str, Any], act_dtype: str) -> list[np.ndarray]:
    """Sums slots in float64. Rounds what lies between the products to the attribute `inner` first, if it is given."""
    return [experts.compute(inputs, attrs, multiply_in(attrs["format"], act_dtype)).astype(np.float32)]


OP = Op(
    "weight_only_experts",
    operands=experts.OP.operands,
    attrs={"activation": "str", "format": "format"},
    optional_attrs=experts.OP.optional_attrs,
    stages=("cached",),
    infer=experts.infer,
    reference=reference,
    kind="mixture",
    per_token=True,
    sums=True,
)
