"""linear_attention(v, k, q, slopes):  attention without a softmax, whose weights decay with distance (Qin et al. 2024,
"Lightning Attention-2", equation 2)

For each head, whose state H is [N, P] and zero before the first token, in float32:

    H = exp(-slope) H + k v^T,  y = q^T H

This is state_space_scan with steps of 1, without a skip, and with a group for each head.

S tokens.  v: [1, S, heads P], k and q: [1, S, heads N], slopes: [heads].  y: [1, S, heads P].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorwright.errors import GraphError
from tensorwright.ir.graph import Shape, Value
from tensorwright.ir.records import Op, rows, shared
from tensorwright.plugins.rounding import round_to
from tensorwright.plugins.state_space_scan.op import scan


def infer(inputs: Sequence[Value | None], attrs: dict[str, Any]) -> list[tuple[str, Shape]]:
    """Returns the type of v. Raises GraphError for operands that do not fit."""
    v, k, q, slopes = inputs
    heads = attrs["heads"]
    if v is None or k is None or q is None or slopes is None:
        raise GraphError("linear_attention: all operands must be present")
    fits = v.rank == k.rank == 3 and k.shape == q.shape and k.shape[:2] == v.shape[:2] and slopes.shape == (heads,)
    if not fits or int(v.shape[2]) % heads or int(k.shape[2]) % heads:
        raise GraphError(
            f"linear_attention: v must be [1, S, {heads} P], k and q [1, S, {heads} N] and slopes [{heads}], got "
            f"{[list(x.shape) for x in (v, k, q, slopes)]}"
        )
    return [(v.dtype, v.shape)]


def advance(v: np.ndarray, k: np.ndarray, q: np.ndarray, slopes: np.ndarray, state: np.ndarray) -> np.ndarray:
    """Computes one sequence and changes `state` [heads, N, P] in place. The result is float64.

    v: [tokens, heads, P], k and q: [tokens, heads, N], slopes: [heads].
    """
    steps, none = np.zeros(v.shape[:2], np.float32), np.zeros(len(slopes))
    return scan(v, steps, k, q, -slopes.astype(np.float64), none, none, (1.0, 1.0), state)


def reference(inputs: Sequence[Any], attrs: dict[str, Any], act_dtype: str) -> list[np.ndarray]:
    *parts, slopes = inputs
    v, k, q = (x[0].reshape(x.shape[1], attrs["heads"], -1) for x in parts)
    y = advance(v, k, q, slopes, np.zeros((attrs["heads"], k.shape[2], v.shape[2]), np.float32))
    return [round_to(y.reshape(parts[0].shape).astype(np.float32), act_dtype)]


OP = Op(
    "linear_attention",
    operands=(rows("v"), rows("k"), rows("q"), shared("slopes", wide=True)),
    attrs={"heads": "int"},
    stages=("traced", "fused"),
    infer=infer,
    reference=reference,
    kind="recurrence",
    sums=True,
)
