"""quantized_experts(x, index, weights, up, down, up_bias?, down_bias?){activation, format, ...}:  experts, rounded

x, what lies between the two products, and the matrices are rounded as quantize.py rounds them. The shapes are those of
plugins/experts/op.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorwright.engine_format.weight_layouts import QUANTIZED
from tensorwright.engine_format.weight_layouts import gated as gated_layout
from tensorwright.ir.records import Instruction, Op, shared
from tensorwright.plugins.experts import op as experts
from tensorwright.plugins.gated import ACTIVATIONS
from tensorwright.plugins.quantized_matmul.linear import product


def multiply_in(attrs: dict[str, Any]) -> experts.Multiply:
    """Returns the product with the kernels' order of sums, both operands rounded to the attribute `format`."""
    return lambda x, w: product(x.astype(np.float32), w, attrs["format"])


def reference(inputs: Sequence[Any], attrs: dict[str, Any], act_dtype: str) -> list[np.ndarray]:
    """Sums slots in float64. Rounds what lies between the products to the attribute `inner` first, if it is given."""
    return [experts.compute(inputs, attrs, multiply_in(attrs)).astype(np.float32)]


OP = Op(
    "quantized_experts",
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
INSTRUCTION = Instruction(
    "quantized_experts",
    number=15,
    shares_number_of="experts",
    operands=(*experts.OPERANDS[:3], shared("gate_up", gated_layout(QUANTIZED)), shared("down", QUANTIZED)),
    attrs={**experts.INSTRUCTION.attrs, "format": "format"},
    words={"activation": ACTIVATIONS},
    kind="mixture",
    reference=reference,
    sums=True,
)
