"""weight_only_head_products(x, w){format}:  head_products, only w rounded, as weight_only_linear rounds it

The shapes are those of plugins/head_products/op.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorwright.ir.records import Op
from tensorwright.plugins.head_products import op as head_products
from tensorwright.plugins.quantized_matmul.weight_only import restored


def reference(inputs: Sequence[Any], attrs: dict[str, Any], act_dtype: str) -> list[np.ndarray]:
    """Sums in float64 and rounds once at the end."""
    x, w = inputs
    kept = np.stack([restored(matrix, attrs["format"], w.shape[2], act_dtype) for matrix in w])
    return head_products.reference([x, kept], {}, act_dtype)


OP = Op(
    "weight_only_head_products",
    operands=head_products.OP.operands,
    attrs={"format": "format"},
    stages=("cached",),
    infer=head_products.infer,
    reference=reference,
    kind="head product",
    per_token=True,
    sums=True,
)
