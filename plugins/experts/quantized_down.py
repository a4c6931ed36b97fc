"""quantized_experts_down(x, index, weights?, down, bias?):  experts_down, both operands of the product rounded"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorwright.engine_format.weight_layouts import QUANTIZED
from tensorwright.ir.records import Instruction, shared
from tensorwright.plugins.experts import down
from tensorwright.plugins.experts.quantized import multiply_in


def reference(inputs: Sequence[Any], attrs: dict[str, Any], act_dtype: str) -> list[np.ndarray]:
    """Computes the product with the kernels' order of sums, and sums slots in float64."""
    return down.compute(inputs, attrs, multiply_in(attrs))


INSTRUCTION = Instruction(
    "quantized_experts_down",
    number=30,
    shares_number_of="experts_down",
    operands=(*down.INSTRUCTION.operands[:3], shared("down", QUANTIZED), down.INSTRUCTION.operands[4]),
    attrs={**down.INSTRUCTION.attrs, "format": "format"},
    kind="mixture",
    reference=reference,
    sums=True,
)
