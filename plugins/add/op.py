"""add(a, b):  y = a + b

a, b, y: the same shape, float32.  This is the instruction of the lowered stage; adds that broadcast do not reach it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorwright.ir.records import InPlace, Instruction, rows


def reference(inputs: list[np.ndarray], attrs: dict[str, Any], act_dtype: str) -> list[np.ndarray]:
    a, b = inputs
    return [a.astype(np.float32) + b.astype(np.float32)]


INSTRUCTION = Instruction(
    "add",
    number=9,
    operands=(rows("a"), rows("b")),
    reference=reference,
    in_place=(InPlace("y", ("a", "b")),),
)
