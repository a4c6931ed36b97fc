"""rg_lru(x, a, first):  the recurrence of a real-gated linear recurrent unit (De et al. 2024, "Griffin", equation 4)

For each channel, whose state h is zero before the first token, in float32:

    h = a h + x,  y = h;  where `first` is true, h = x

S tokens, C channels.  x and a: [1, S, C], first: [1, S, 1] bool.  y: [1, S, C].  carried.py has the gates too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorwright.errors import GraphError
from tensorwright.ir.graph import Shape, Value
from tensorwright.ir.records import Op, rows
from tensorwright.plugins.rounding import round_to


def infer(inputs: Sequence[Value | None], attrs: dict[str, Any]) -> list[tuple[str, Shape]]:
    """Returns the type of x. Raises GraphError for operands that do not fit."""
    x, a, first = inputs
    if x is None or a is None or first is None:
        raise GraphError("rg_lru: all operands must be present")
    if x.rank != 3 or a.shape != x.shape or first.shape != (*x.shape[:2], 1):
        raise GraphError(
            f"rg_lru: x and a must be [1, S, C] and first [1, S, 1], got {[list(v.shape) for v in (x, a, first)]}"
        )
    return [(x.dtype, x.shape)]


def advance(x: np.ndarray, a: np.ndarray, state: np.ndarray) -> np.ndarray:
    """Computes one sequence and changes `state` [C] in place. x, a and the result: [tokens, C].

    The state is rounded to float32 after every token, so that the result does not depend on where a sequence is cut.
    """
    y = np.zeros(x.shape, np.float32)
    for t in range(len(x)):
        state[:] = a[t].astype(np.float64) * state + x[t]
        y[t] = state
    return y


def reference(inputs: Sequence[Any], attrs: dict[str, Any], act_dtype: str) -> list[np.ndarray]:
    x, a, first = inputs
    kept = np.where(first[0], 0.0, a[0])
    return [round_to(advance(x[0], kept, np.zeros(x.shape[2], np.float32))[None], act_dtype)]


OP = Op(
    "rg_lru",
    operands=(rows("x"), rows("a"), rows("first")),
    stages=("traced", "fused"),
    infer=infer,
    reference=reference,
    kind="recurrence",
    sums=True,
)
