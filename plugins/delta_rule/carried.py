"""carried_delta_rule(row, dt, beta, w){state, key_heads, heads, width, beta_scale}:  delta_rule of a ragged batch

A row holds q, k and v of one token side by side, and w is log(-a) of the heads. The decay is g = a softplus(dt),
and the rate is beta_scale sigmoid(beta).

row: [T, 2 key_heads K + heads P], dt: [T, heads] or [T, heads K], beta: [T, heads], w: [heads].
y: [T, heads P], P = `width`.
The state of a sequence is [heads, K, P] float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorwright.errors import GraphError
from tensorwright.ir.graph import Shape, Value
from tensorwright.plugins.carried import advance_batch, make_instruction, make_op
from tensorwright.plugins.delta_rule.op import advance
from tensorwright.plugins.rounding import round_to


def infer(inputs: Sequence[Value | None], attrs: dict[str, Any]) -> list[tuple[str, Shape]]:
    """Returns the types of y and of the states. Raises GraphError for operands that do not fit."""
    row, dt, beta, _, _, _, states, w = inputs
    if row is None or dt is None or beta is None or states is None or w is None:
        raise GraphError("carried_delta_rule: all operands must be present")
    heads, key_heads, width = attrs["heads"], attrs["key_heads"], attrs["width"]
    fits = row.rank == dt.rank == 2 and beta.shape == (row.shape[0], heads) and w.shape == (heads,)
    keys, rest = divmod(int(row.shape[1]) - heads * width, 2 * key_heads)
    if not fits or keys < 1 or rest or dt.shape not in ((row.shape[0], heads), (row.shape[0], heads * keys)):
        raise GraphError(
            f"carried_delta_rule: row must be [tokens, 2 * {key_heads} K + {heads * width}], dt [tokens, {heads}] or "
            f"[tokens, {heads} K], beta [tokens, {heads}] and w [{heads}], got "
            f"{[list(v.shape) for v in (row, dt, beta, w)]}"
        )
    return [(row.dtype, (row.shape[0], heads * width)), (states.dtype, states.shape)]


def reference(inputs: Sequence[Any], attrs: dict[str, Any], act_dtype: str) -> list[Any]:
    """Computes every sequence of the batch. The states are a StateCache of one array [heads, K, P]."""
    row, dt, beta, *batch, w = inputs
    heads, key_heads, width = attrs["heads"], attrs["key_heads"], attrs["width"]
    keys = (row.shape[1] - heads * width) // (2 * key_heads)
    g = np.logaddexp(0.0, dt.astype(np.float64)).reshape(len(row), heads, -1) * -np.exp(w.astype(np.float64))[:, None]
    rate = attrs["beta_scale"] / (1.0 + np.exp(-beta.astype(np.float64)))
    q, k, v = np.split(row, [key_heads * keys, 2 * key_heads * keys], axis=1)
    q, k, v = (x.reshape(len(row), n, -1) for x, n in ((q, key_heads), (k, key_heads), (v, heads)))

    def advance_sequence(part: slice, state: np.ndarray) -> np.ndarray:
        return advance(q[part], k[part], v[part], g[part], rate[part], state)

    y = np.zeros(v.shape, np.float64)
    states = advance_batch(batch, np.zeros((heads, keys, width), np.float32), y, advance_sequence)
    return [round_to(y.reshape(len(row), -1).astype(np.float32), act_dtype), states]


_ATTRS = {"key_heads": "int", "heads": "int", "width": "int", "beta_scale": "float"}
OP = make_op("carried_delta_rule", ("row", "dt", "beta"), ("w",), _ATTRS, infer, reference)
INSTRUCTION = make_instruction(OP, number=22)
