"""state_space_scan(x, dt, b, c, a, d, dt_bias):  the scan of Mamba-2 (Dao and Gu 2024, "Transformers are SSMs", 6)

For each head h, whose state H is [N, P] and zero before the first token, in float32:

    step = clamp(softplus(dt[h] + dt_bias[h]), dt_min, dt_max)
    H    = exp(step a[h]) H + b (step x[h])^T
    y[h] = c^T H + d[h] x[h]

b and c are those of the head's group; head h has group h // (heads / groups).

S tokens, N states.  x: [1, S, heads P], dt: [1, S, heads], b and c: [1, S, groups N]; a, d and dt_bias: [heads].
y: [1, S, heads P].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorwright.errors import GraphError
from tensorwright.ir.graph import Shape, Value
from tensorwright.ir.records import Op, rows, shared
from tensorwright.plugins.rounding import round_to

MAX_STEP = float(np.finfo(np.float32).max)
"""The bound of steps that have none."""


def infer(inputs: Sequence[Value | None], attrs: dict[str, Any]) -> list[tuple[str, Shape]]:
    """Returns the type of x. Raises GraphError for operands that do not fit."""
    x, dt, b, c, *vectors = inputs
    heads, groups = attrs["heads"], attrs["groups"]
    if x is None or dt is None or b is None or c is None or any(v is None or v.shape != (heads,) for v in vectors):
        raise GraphError(f"state_space_scan: a, d and dt_bias must be [{heads}]")
    fits = all(v.rank == 3 and v.shape[:2] == x.shape[:2] for v in (x, dt, b, c)) and b.shape == c.shape
    columns = (x.shape[-1], b.shape[-1])
    fits = fits and all(isinstance(n, int) for n in columns) and dt.shape[-1] == heads and heads % groups == 0
    if not fits or int(columns[0]) % heads or int(columns[1]) % groups:
        raise GraphError(
            f"state_space_scan: x, dt, b and c must be [1, S, {heads} P], [1, S, {heads}] and [1, S, {groups} N] "
            f"twice, got {[list(v.shape) for v in (x, dt, b, c)]}"
        )
    return [(x.dtype, x.shape)]


def scan(
    x: np.ndarray,
    dt: np.ndarray,
    b: np.ndarray,
    c: np.ndarray,
    a: np.ndarray,
    d: np.ndarray,
    dt_bias: np.ndarray,
    limits: tuple[float, float],
    state: np.ndarray,
) -> np.ndarray:
    """Scans one sequence and changes `state` [heads, N, P] in place. The result is float64.

    x: [tokens, heads, P], dt: [tokens, heads], b and c: [tokens, groups, N]. The state is rounded to float32 after
    every token, so that the result does not depend on where a sequence is cut.
    """
    steps = np.clip(np.logaddexp(0.0, dt.astype(np.float64) + dt_bias), *limits)
    each = len(a) // b.shape[1]
    b, c = (np.repeat(v.astype(np.float64), each, axis=1) for v in (b, c))
    y = np.zeros(x.shape, np.float64)
    for t, step in enumerate(steps):
        decay = np.exp(step * a)[:, None, None]
        state[:] = decay * state + b[t][:, :, None] * (step[:, None] * x[t])[:, None, :]
        y[t] = np.einsum("hn,hnp->hp", c[t], state) + d[:, None] * x[t]
    return y


def reference(inputs: Sequence[Any], attrs: dict[str, Any], act_dtype: str) -> list[np.ndarray]:
    x, dt, b, c, a, d, dt_bias = inputs
    heads, groups, tokens = attrs["heads"], attrs["groups"], x.shape[1]
    state = np.zeros((heads, b.shape[2] // groups, x.shape[2] // heads), np.float32)
    rows_of = [v[0].reshape(tokens, n, -1) for v, n in ((x, heads), (b, groups), (c, groups))]
    limits = (attrs["dt_min"], attrs["dt_max"])
    y = scan(rows_of[0], dt[0], rows_of[1], rows_of[2], a, d, dt_bias, limits, state)
    return [round_to(y.reshape(x.shape).astype(np.float32), act_dtype)]


VECTORS = (shared("a", wide=True), shared("d", wide=True), shared("dt_bias", wide=True))
OP = Op(
    "state_space_scan",
    operands=(rows("x"), rows("dt"), rows("b"), rows("c"), *VECTORS),
    attrs={"heads": "int", "groups": "int", "dt_min": "float", "dt_max": "float"},
    stages=("traced", "fused"),
    infer=infer,
    reference=reference,
    kind="recurrence",
    sums=True,
)
