"""causal_conv(x, w, bias?){activation}:  y[t, c] = act(bias[c] + sum over j < W of w[c, j] * x[t - (W - 1) + j, c])

Each channel is convolved alone with its last W inputs; before the first token they are zero.

x: [1, S, C], w: [C, W], bias: [C].  y: [1, S, C].  act is one of ACTIVATIONS.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorwright.errors import GraphError
from tensorwright.ir.graph import Shape, Value
from tensorwright.ir.records import Op, rows, shared
from tensorwright.plugins.rounding import round_to

ACTIVATIONS = ("none", "silu")
"""The activations, in the order of their numbers in kernel.h."""


def infer(inputs: Sequence[Value | None], attrs: dict[str, Any]) -> list[tuple[str, Shape]]:
    """Returns the type of x. Raises GraphError for operands that do not fit."""
    x, w, bias = (*inputs, None)[:3]
    if attrs["activation"] not in ACTIVATIONS:
        raise GraphError(f"causal_conv: activation must be one of {', '.join(ACTIVATIONS)}, not {attrs['activation']}")
    if x is None or w is None or x.rank != 3 or w.rank != 2 or w.shape[0] != x.shape[2]:
        raise GraphError(
            f"causal_conv: x and w must be [1, S, C] and [C, W], got {[v and list(v.shape) for v in inputs]}"
        )
    if bias is not None and bias.shape != x.shape[2:]:
        raise GraphError(f"causal_conv: bias must be {list(x.shape[2:])}, got {list(bias.shape)}")
    return [(x.dtype, x.shape)]


def convolve(x: np.ndarray, w: np.ndarray, bias: np.ndarray | None, activation: str, before: np.ndarray) -> np.ndarray:
    """Returns the result for x [tokens, C] in float64. w: [W, C], before: [W - 1, C], the inputs before x."""
    inputs = np.concatenate([before, x]).astype(np.float64)
    y = sum(w[j].astype(np.float64) * inputs[j : j + len(x)] for j in range(len(w)))
    y = y if bias is None else y + bias
    with np.errstate(over="ignore"):
        return y / (1.0 + np.exp(-y)) if activation == "silu" else np.asarray(y)


def reference(inputs: Sequence[Any], attrs: dict[str, Any], act_dtype: str) -> list[np.ndarray]:
    x, w, bias = (*inputs, None)[:3]
    before = np.zeros((w.shape[1] - 1, w.shape[0]), x.dtype)
    y = np.stack([convolve(row, w.T, bias, attrs["activation"], before) for row in x])
    return [round_to(y.astype(np.float32), act_dtype)]


OP = Op(
    "causal_conv",
    operands=(rows("x"), shared("w", wide=True), shared("bias?", wide=True)),
    attrs={"activation": "str"},
    stages=("traced", "fused"),
    infer=infer,
    reference=reference,
    kind="recurrence",
    sums=True,
)
