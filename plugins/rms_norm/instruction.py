"""The instruction rms_norm(x, w, residual?) -> (y, sum?): the op rms_norm, with a residual the op add_rms_norm."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorwright.engine_format.weight_layouts import RAW
from tensorwright.ir.records import InPlace, Instruction, rows, shared
from tensorwright.plugins.rms_norm import add_rms_norm, op


def reference(inputs: list[Any], attrs: dict[str, Any], act_dtype: str) -> list[np.ndarray]:
    """Returns y, and the sum if there is a residual."""
    x, w, residual = inputs
    if residual is None:
        return op.reference([x, w], attrs, act_dtype)
    return add_rms_norm.reference([x, residual, w], attrs, act_dtype)


INSTRUCTION = Instruction(
    "rms_norm",
    number=2,
    operands=(rows("x"), shared("w", RAW), rows("residual?")),
    results=(rows("y", narrow=True), rows("sum?")),
    attrs={"eps": "float", "weight_offset": "float"},
    reference=reference,
    sums=True,
    in_place=(InPlace("sum", ("residual", "x")),),
)
