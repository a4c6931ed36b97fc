"""selective_scan(x, dt, b, c, a, d, dt_bias):  the scan of Mamba-1 (Gu and Dao 2023, "Mamba", algorithm 2)

For each channel i, whose state H is [N] and zero before the first token, in float32:

    step = softplus(dt[i] + dt_bias[i])
    H    = exp(step a[i]) H + step x[i] b
    y[i] = c^T H + d[i] x[i]

S tokens, C channels, N states.  x and dt: [1, S, C], b and c: [1, S, N], which all channels share; a: [C, N], d and
dt_bias: [C].  y: [1, S, C].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorwright.errors import GraphError
from tensorwright.ir.graph import Shape, Value
from tensorwright.ir.records import Op, rows, shared
from tensorwright.plugins.rounding import round_to


def infer(inputs: Sequence[Value | None], attrs: dict[str, Any]) -> list[tuple[str, Shape]]:
    """Returns the type of x. Raises GraphError for operands that do not fit."""
    if any(v is None for v in inputs):
        raise GraphError("selective_scan: all operands must be present")
    x, dt, b, c, a, d, dt_bias = (v for v in inputs if v is not None)
    fits = x.rank == b.rank == 3 and a.rank == 2 and x.shape == dt.shape and b.shape == c.shape
    if not fits or b.shape != (*x.shape[:2], a.shape[1]) or a.shape[0] != x.shape[2]:
        raise GraphError(
            "selective_scan: x and dt must be [1, S, C], b and c [1, S, N] and a [C, N], got "
            f"{[list(v.shape) for v in (x, dt, b, c, a)]}"
        )
    if d.shape != a.shape[:1] or dt_bias.shape != a.shape[:1]:
        raise GraphError(f"selective_scan: d and dt_bias must be {list(a.shape[:1])}")
    return [(x.dtype, x.shape)]


def scan(
    x: np.ndarray, dt: np.ndarray, b: np.ndarray, c: np.ndarray, vectors: Sequence[np.ndarray], state: np.ndarray
) -> np.ndarray:
    """Scans one sequence and changes `state` [C, N] in place. The result is float64.

    x and dt: [tokens, C], b and c: [tokens, N]; vectors: a [C, N], d and dt_bias [C]. The state is rounded to float32
    after every token, so that the result does not depend on where a sequence is cut.
    """
    a, d, dt_bias = (v.astype(np.float64) for v in vectors)
    steps = np.logaddexp(0.0, dt.astype(np.float64) + dt_bias)
    y = np.zeros(x.shape, np.float64)
    for t, step in enumerate(steps):
        state[:] = np.exp(step[:, None] * a) * state + (step * x[t])[:, None] * b[t].astype(np.float64)
        y[t] = state.astype(np.float64) @ c[t] + d * x[t]
    return y


def reference(inputs: Sequence[Any], attrs: dict[str, Any], act_dtype: str) -> list[np.ndarray]:
    x, dt, b, c, *vectors = inputs
    y = scan(x[0], dt[0], b[0], c[0], vectors, np.zeros(vectors[0].shape, np.float32))
    return [round_to(y[None].astype(np.float32), act_dtype)]


VECTORS = (shared("a", wide=True), shared("d", wide=True), shared("dt_bias", wide=True))
OP = Op(
    "selective_scan",
    operands=(rows("x"), rows("dt"), rows("b"), rows("c"), *VECTORS),
    stages=("traced", "fused"),
    infer=infer,
    reference=reference,
    kind="recurrence",
    sums=True,
)
