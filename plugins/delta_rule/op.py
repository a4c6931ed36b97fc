"""delta_rule(q, k, v, g, beta):  the gated delta rule (Yang et al. 2024, "Gated Delta Networks", equation 10)

Kimi Delta Attention (Moonshot AI 2025, "Kimi Linear", equation 1) is the same with a decay for each element of a key.

For each value head, whose state H is [K, P] and zero before the first token, in float32:

    q = q / |q| / sqrt(K),  k = k / |k|,  with |x| = sqrt(sum(x x) + 1e-6)
    H = exp(g) H,  H = H + k (beta (v - k^T H))^T,  y = q^T H

g is one number for all of H, or one for each of its K rows.
q and k are those of the value head's key head; value head h has key head h // (heads / key_heads).

S tokens.  q and k: [1, S, key_heads K], v: [1, S, heads P], beta: [1, S, heads], g: [1, S, heads] or
[1, S, heads K].  y: [1, S, heads P].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorwright.errors import GraphError
from tensorwright.ir.graph import Shape, Value
from tensorwright.ir.records import Op, rows
from tensorwright.plugins.rounding import round_to

EPSILON = 1e-6
"""Equal to TW_DELTA_EPSILON of kernel.h."""


def infer(inputs: Sequence[Value | None], attrs: dict[str, Any]) -> list[tuple[str, Shape]]:
    """Returns the type of v. Raises GraphError for operands that do not fit."""
    q, k, v, g, beta = inputs
    if q is None or k is None or v is None or g is None or beta is None:
        raise GraphError("delta_rule: all operands must be present")
    heads, key_heads = attrs["heads"], attrs["key_heads"]
    fits = all(x.rank == 3 and x.shape[:2] == v.shape[:2] for x in (q, k, v, g, beta)) and q.shape == k.shape
    fits = fits and beta.shape[2] == heads and heads % key_heads == 0
    if (
        not fits
        or int(q.shape[2]) % key_heads
        or int(v.shape[2]) % heads
        or g.shape[2] not in (heads, int(q.shape[2]) // key_heads * heads)
    ):
        raise GraphError(
            f"delta_rule: q and k must be [1, S, {key_heads} K], v [1, S, {heads} P], g [1, S, {heads}] or "
            f"[1, S, {heads} K] and beta [1, S, {heads}], got {[list(x.shape) for x in (q, k, v, g, beta)]}"
        )
    return [(v.dtype, v.shape)]


def advance(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, g: np.ndarray, beta: np.ndarray, state: np.ndarray
) -> np.ndarray:
    """Computes one sequence and changes `state` [heads, K, P] in place. The result is float64.

    q and k: [tokens, key_heads, K], v: [tokens, heads, P], g: [tokens, heads, 1 or K], beta: [tokens, heads]. The state
    is rounded to float32 after every token, so that the result does not depend on where a sequence is cut.
    """
    each = v.shape[1] // q.shape[1]
    q, k = (np.repeat(x.astype(np.float64), each, axis=1) for x in (q, k))
    q, k = (x / np.sqrt((x * x).sum(-1, keepdims=True) + EPSILON) for x in (q, k))
    y = np.zeros(v.shape, np.float64)
    for t in range(len(v)):
        kept = np.exp(g[t].astype(np.float64))[:, :, None] * state
        change = beta[t][:, None] * (v[t] - np.einsum("hk,hkp->hp", k[t], kept))
        state[:] = kept + k[t][:, :, None] * change[:, None, :]
        y[t] = np.einsum("hk,hkp->hp", q[t], state) / np.sqrt(q.shape[2])
    return y


def reference(inputs: Sequence[Any], attrs: dict[str, Any], act_dtype: str) -> list[np.ndarray]:
    q, k, v, g, beta = inputs
    heads, key_heads, tokens = attrs["heads"], attrs["key_heads"], v.shape[1]
    q, k, v = (x[0].reshape(tokens, n, -1) for x, n in ((q, key_heads), (k, key_heads), (v, heads)))
    state = np.zeros((heads, q.shape[2], v.shape[2]), np.float32)
    y = advance(q, k, v, g[0].reshape(tokens, heads, -1), beta[0], state)
    return [round_to(y.reshape(inputs[2].shape).astype(np.float32), act_dtype)]


OP = Op(
    "delta_rule",
    operands=(rows("q"), rows("k"), rows("v"), rows("g"), rows("beta")),
    attrs={"key_heads": "int", "heads": "int"},
    stages=("traced", "fused"),
    infer=infer,
    reference=reference,
    kind="recurrence",
    sums=True,
)
