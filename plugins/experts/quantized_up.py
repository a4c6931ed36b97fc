"""quantized_experts_up(x, index, weights?, up, bias?):  experts_up, both operands of the product rounded"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorwright.engine_format.weight_layouts import QUANTIZED
from tensorwright.ir.records import Instruction, shared
from tensorwright.plugins.experts import up
from tensorwright.plugins.experts.quantized import multiply_in


def reference(inputs: Sequence[Any], attrs: dict[str, Any], act_dtype: str) -> list[np.ndarray]:
    """Computes the product with the kernels' order of sums, and rounds to the attribute `inner`."""
    return up.compute(inputs, attrs, multiply_in(attrs))


INSTRUCTION = Instruction(
    "quantized_experts_up",
    number=29,
    shares_number_of="experts_up",
    operands=(*up.INSTRUCTION.operands[:3], shared("up", QUANTIZED), up.INSTRUCTION.operands[4]),
    attrs={**up.ATTRS, "format": "format"},
    words=up.WORDS,
    kind="mixture",
    reference=reference,
    sums=True,
)
