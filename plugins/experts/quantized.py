"""quantized_experts(x, index, weights, gate_up, down){activation, format}:  experts, all operands of products rounded

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
from tensorwright.plugins.gated import ACTIVATIONS, gated
from tensorwright.plugins.quantized_matmul.linear import product
from tensorwright.plugins.rounding import round_to


def reference(inputs: Sequence[Any], attrs: dict[str, Any], act_dtype: str) -> list[np.ndarray]:
    """Computes products with the kernels' order of sums, and sums slots in float64.

    Rounds what lies between the products to the attribute `inner` first, where it is given.
    """
    x, index, weights, gate_up, down = inputs
    flat = np.asarray(x, np.float32).reshape(-1, x.shape[-1])
    chosen, shares = index.reshape(len(flat), -1), weights.reshape(len(flat), -1).astype(np.float64)
    y = np.zeros(flat.shape)
    for expert in np.unique(chosen):
        row, slot = np.nonzero(chosen == expert)
        inner = gated(product(flat[row], gate_up[expert], attrs["format"]), attrs["activation"]).astype(np.float32)
        inner = round_to(inner, attrs.get("inner", "float32"))
        np.add.at(y, row, shares[row, slot, None] * product(inner, down[expert], attrs["format"]))
    return [y.reshape(x.shape).astype(np.float32)]


OP = Op(
    "quantized_experts",
    operands=experts.OPERANDS,
    attrs={"activation": "str", "format": "format"},
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
    attrs={"experts": "int", "activation": "str", "format": "format", "inner": "dtype"},
    words={"activation": ACTIVATIONS},
    kind="mixture",
    reference=reference,
    sums=True,
)
