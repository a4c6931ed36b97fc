"""quantized_matmul(x, w, bias?, residual?){format, epilogue, n}:  matmul with x and w quantized as `format` says

Shapes and epilogues are those of plugins/matmul/op.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorwright.engine_format.weight_layouts import BIAS, QUANTIZED
from tensorwright.ir.records import InPlace, Instruction, rows, shared
from tensorwright.plugins.gated import ACTIVATIONS, gated
from tensorwright.plugins.matmul import op as matmul
from tensorwright.plugins.quantized_matmul import linear
from tensorwright.plugins.rounding import round_to


def reference(inputs: Sequence[np.ndarray | None], attrs: dict[str, Any], act_dtype: str) -> list[np.ndarray]:
    x, w, bias, residual = (*inputs, None, None)[:4]
    (y,) = linear.reference([x, w, bias], {"format": attrs["format"]}, act_dtype)
    epilogue = attrs["epilogue"]
    if epilogue != matmul.EPILOGUE_NONE:
        y = gated(y, ACTIVATIONS[epilogue - 1]).astype(np.float32)
    if residual is not None:
        y = y + residual
    return [round_to(y, "float32" if epilogue == matmul.EPILOGUE_NONE else act_dtype)]


INSTRUCTION = Instruction(
    "quantized_matmul",
    number=13,
    operands=(rows("x"), shared("w", QUANTIZED), shared("bias?", BIAS), rows("residual?")),
    attrs={"format": "format", "epilogue": "int", "n": "int"},
    reference=reference,
    kind="product",
    sums=True,
    in_place=(InPlace("y", ("residual",)),),
)
