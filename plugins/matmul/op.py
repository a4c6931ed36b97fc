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
from tensorwright.errors import GraphError
from tensorwright.ir.graph import Shape, Value
from tensorwright.ir.records import InPlace, Instruction, rows, shared
from tensorwright.plugins.gated import ACTIVATIONS, gated
from tensorwright.plugins.rounding import round_to

EPILOGUE_NONE = 0
EPILOGUES = {activation: 1 + i for i, activation in enumerate(ACTIVATIONS)}
"""The epilogue of each activation of a gate, a number of kernel.h."""


def infer(inputs: Sequence[Value | None], attrs: dict[str, Any]) -> list[tuple[str, Shape]]:
    """Returns [T, n]: of x's type if gated, since another matmul reads it; else float32."""
    x, w, bias, residual = (*inputs, None, None)[:4]
    if x is None or w is None:
        raise GraphError("matmul: x and w must be present")
    epilogue, n = attrs["epilogue"], attrs["n"]
    if epilogue not in (EPILOGUE_NONE, *EPILOGUES.values()):
        raise GraphError(f"matmul: epilogue must be 0 (none) to {len(EPILOGUES)}, got {epilogue}")
    rows = n if epilogue == EPILOGUE_NONE else 2 * n
    if w.shape != (rows, x.shape[-1]):
        raise GraphError(f"matmul: w must be [{rows}, {x.shape[-1]}] for x {list(x.shape)}, got {list(w.shape)}")
    if bias is not None and bias.shape != (rows,):
        raise GraphError(f"matmul: bias must be [{rows}], got {list(bias.shape)}")
    shape = (*x.shape[:-1], n)
    if residual is not None and residual.shape != shape:
        raise GraphError(f"matmul: residual must be {list(shape)}, got {list(residual.shape)}")
    return [("float32" if epilogue == EPILOGUE_NONE else x.dtype, shape)]


def product(x: np.ndarray, w: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    """Returns x w^T + bias in float64."""
    y = x.astype(np.float64) @ w.astype(np.float64).T
    return y if bias is None else y + bias.astype(np.float64)


def reference(inputs: Sequence[np.ndarray | None], attrs: dict[str, Any], act_dtype: str) -> list[np.ndarray]:
    """Sums in float64 and rounds once at the end: to the activation type if gated, else to float32."""
    x, w, bias, residual = (*inputs, None, None)[:4]
    assert x is not None
    assert w is not None
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
    infer=infer,
    reference=reference,
    kind="product",
    sums=True,
    in_place=(InPlace("y", ("residual",)),),
)
