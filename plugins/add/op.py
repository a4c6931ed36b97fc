"""add(a, b):  y = a + b

a, b, y: the same shape, float32.  This is the instruction of the lowered stage; adds that broadcast do not reach it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorwright.errors import GraphError
from tensorwright.ir.graph import Shape, Value
from tensorwright.ir.records import InPlace, Instruction, rows


def infer(inputs: list[Value], attrs: dict[str, Any]) -> list[tuple[str, Shape]]:
    a, b = inputs
    if a.shape != b.shape:
        raise GraphError(f"add: both operands must have one shape, got {list(a.shape)} and {list(b.shape)}")
    return [("float32", a.shape)]


def reference(inputs: list[np.ndarray], attrs: dict[str, Any], act_dtype: str) -> list[np.ndarray]:
    a, b = inputs
    return [a.astype(np.float32) + b.astype(np.float32)]


INSTRUCTION = Instruction(
    "add",
    number=9,
    operands=(rows("a"), rows("b")),
    infer=infer,
    reference=reference,
    in_place=(InPlace("y", ("a", "b")),),
)
