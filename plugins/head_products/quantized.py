"""quantized_head_products(x, w){format}:  head_products, both operands rounded as quantize.py rounds them

Each matrix of a head is rounded along its own K, and so are the columns of x that it multiplies. The shapes are those
of plugins/head_products/op.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorwright.engine_format.weight_layouts import QUANTIZED
from tensorwright.ir.records import Instruction, Op, rows, shared
from tensorwright.plugins.head_products import op as head_products
from tensorwright.plugins.quantized_matmul.linear import product
from tensorwright.plugins.rounding import round_to


def reference(inputs: Sequence[Any], attrs: dict[str, Any], act_dtype: str) -> list[np.ndarray]:
    """Computes products with the kernels' order of sums."""
    x, w = inputs
    heads, width, inner = w.shape
    read = head_products.heads_of(np.asarray(x, np.float32), heads, inner)
    y = np.stack([product(read[:, head], w[head], attrs["format"]) for head in range(heads)], axis=1)
    return [round_to(y.reshape(*x.shape[:-1], heads * width), act_dtype)]


OP = Op(
    "quantized_head_products",
    operands=head_products.OP.operands,
    attrs={"format": "format"},
    stages=("cached",),
    infer=head_products.infer,
    reference=reference,
    kind="head product",
    per_token=True,
    sums=True,
)
INSTRUCTION = Instruction(
    "quantized_head_products",
    number=16,
    shares_number_of="head_products",
    operands=(rows("x"), shared("w", QUANTIZED)),
    attrs={"heads": "int", "format": "format"},
    results=head_products.INSTRUCTION.results,
    reference=reference,
    kind="head product",
    sums=True,
)
