"""matmul(x, w, bias?, residual?):  y = act(x w^T + bias) + residual

x: [T, K], w: [N, K], bias: [N], residual and y: [T, n].  epilogue 0: act is the identity, n = N.
epilogue 1 + i: w and bias hold n gate rows and then n up rows; act is ACTIVATIONS[i](gate) * up, n = N / 2.

x and w are of the activation type; sums, bias and residual are float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorwright.engine_format.weight_layouts import BIAS, PANELS
from tensorwright.ir.records import InPlace, Instruction, rows, shared
from tensorwright.plugins.gated import ACTIVATIONS, gated
from tensorwright.plugins.rounding import round_to

EPILOGUE_NONE = 0
EPILOGUES = {activation: 1 + i for i, activation in enumerate(ACTIVATIONS)}
"""The epilogue of each activation of a gate, a number of kernel.h."""


def product(x: np.ndarray, w: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    """Returns x w^T + bias in float64."""
    y = x.astype(np.float64) @ w.astype(np.float64).T
    return y if bias is None else y + bias.astype(np.float64)


def reference(inputs: Sequence[Any], attrs: dict[str, Any], act_dtype: str) -> list[np.ndarray]:
    """Sums in float64 and rounds once at the end: to the activation type if gated, else to float32."""
    x, w, bias, residual = (*inputs, None, None)[:4]
    y = product(round_to(x, act_dtype), round_to(w, act_dtype), bias)
    epilogue = attrs["epilogue"]
    if epilogue != EPILOGUE_NONE:
        y = gated(y, ACTIVATIONS[epilogue - 1])
    if residual is not None:
        y = y + residual.astype(np.float64)
    return [round_to(y.astype(np.float32), "float32" if epilogue == EPILOGUE_NONE else act_dtype)]


INSTRUCTION = Instruction(
    "matmul",
    number=3,
    operands=(rows("x"), shared("w", PANELS), shared("bias?", BIAS), rows("residual?")),
    attrs={"epilogue": "int", "n": "int"},
    reference=reference,
    kind="product",
    sums=True,
    in_place=(InPlace("y", ("residual",)),),
)
