"""The instruction layer_norm(x, w, b?, residual?) -> (y, sum?), to which three ops of the graph are lowered.

Without a residual it is layer_norm_columns; layer_norm has one run as wide as the row. With a residual it is
add_layer_norm.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorwright.engine_format.weight_layouts import RAW
from tensorwright.ir.records import InPlace, Instruction, rows, shared
from tensorwright.plugins.layer_norm import add_layer_norm, layer_norm_columns


def reference(inputs: list[Any], attrs: dict[str, Any], act_dtype: str) -> list[np.ndarray]:
    """Returns y, and the sum if there is a residual."""
    x, w, b, residual = inputs
    if residual is None:
        return layer_norm_columns.reference([x, w, b], attrs, act_dtype)
    return add_layer_norm.reference([x, residual, w, b], attrs, act_dtype)


INSTRUCTION = Instruction(
    "layer_norm",
    number=12,
    operands=(rows("x"), shared("w", RAW), shared("b?", RAW), rows("residual?")),
    results=(rows("y", narrow=True), rows("sum?")),
    attrs={"start": "int", "heads": "int", "width": "int", "eps": "float", "weight_offset": "float"},
    reference=reference,
    sums=True,
    in_place=(InPlace("sum", ("residual", "x")), InPlace("y", ("x",), without="residual")),
)
