"""concat(x0, x1, x2?, x3?):  y = the columns of x0, then those of x1, and so on

x: [T, Ci] each, float32.  y: [T, C0 + C1 + ...].  This is the instruction of the lowered stage; before it, concat is a
primitive of any rank and with any number of operands.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorwright.ir.records import Instruction, rows


def reference(inputs: list[np.ndarray | None], attrs: dict[str, Any], act_dtype: str) -> list[np.ndarray]:
    return [np.concatenate([x for x in inputs if x is not None], axis=1)]


INSTRUCTION = Instruction(
    "concat",
    number=31,
    operands=(rows("x0"), rows("x1"), rows("x2?"), rows("x3?")),
    reference=reference,
)
