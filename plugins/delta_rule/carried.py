"""carried_delta_rule(row, dt, beta, w){state, key_heads, heads, width, beta_scale}:  delta_rule of a ragged batch

A row holds q, k and v of one token side by side, and w is log(-a) of the heads. The decay is g = a softplus(dt),
and the rate is beta_scale sigmoid(beta).

row: [T, 2 key_heads K + heads P], dt and beta: [T, heads], w: [heads].  y: [T, heads P], P = `width`.
The state of a sequence is [heads, K, P] float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorwright.engine_format.weight_layouts import RAW
from tensorwright.errors import GraphError
from tensorwright.ir.graph import Shape, Value
from tensorwright.ir.records import Instruction, Op, metadata, rows, shared, state
from tensorwright.plugins.delta_rule.op import advance
from tensorwright.plugins.rounding import round_to


def infer(inputs: Sequence[Value | None], attrs: dict[str, Any]) -> list[tuple[str, Shape]]:
    """Returns the types of y and of the states. Raises GraphError for operands that do not fit."""
    row, dt, beta, _, _, _, states, w = inputs
    if row is None or dt is None or beta is None or states is None or w is None:
        raise GraphError("carried_delta_rule: all operands must be present")
    heads, key_heads, width = attrs["heads"], attrs["key_heads"], attrs["width"]
    fits = row.rank == 2 and dt.shape == beta.shape == (row.shape[0], heads) and w.shape == (heads,)
    if not fits or int(row.shape[1]) <= heads * width or (int(row.shape[1]) - heads * width) % (2 * key_heads):
        raise GraphError(
            f"carried_delta_rule: row must be [tokens, 2 * {key_heads} K + {heads * width}], dt and beta "
            f"[tokens, {heads}] and w [{heads}], got {[list(v.shape) for v in (row, dt, beta, w)]}"
        )
    return [(row.dtype, (row.shape[0], heads * width)), (states.dtype, states.shape)]


def reference(inputs: Sequence[Any], attrs: dict[str, Any], act_dtype: str) -> list[Any]:
    """Computes every sequence of the batch. The states are a StateCache of one array [heads, K, P]."""
    row, dt, beta, seq_starts, context_lens, state_slots, states, w = inputs
    heads, key_heads, width = attrs["heads"], attrs["key_heads"], attrs["width"]
    keys = (row.shape[1] - heads * width) // (2 * key_heads)
    g = -np.exp(w.astype(np.float64)) * np.logaddexp(0.0, dt.astype(np.float64))
    rate = attrs["beta_scale"] / (1.0 + np.exp(-beta.astype(np.float64)))
    q, k, v = np.split(row, [key_heads * keys, 2 * key_heads * keys], axis=1)
    q, k, v = (x.reshape(len(row), n, -1) for x, n in ((q, key_heads), (k, key_heads), (v, heads)))
    y, after = np.zeros(v.shape, np.float64), {}
    zero = (np.zeros((heads, keys, width), np.float32),)
    for slot, begin, end, (before,) in states.read_batch(seq_starts, context_lens, state_slots, zero):
        state, part = before.copy(), slice(begin, end)
        y[part] = advance(q[part], k[part], v[part], g[part], rate[part], state)
        after[slot] = (state,)
    return [round_to(y.reshape(len(row), -1).astype(np.float32), act_dtype), states.write(after)]


_BATCH = (metadata("seq_starts"), metadata("context_lens"), metadata("state_slots"), state("state"))
_ATTRS = {"state": "int", "key_heads": "int", "heads": "int", "width": "int", "beta_scale": "float"}
OP = Op(
    "carried_delta_rule",
    operands=(rows("row"), rows("dt"), rows("beta"), *_BATCH, shared("w", wide=True)),
    attrs=_ATTRS,
    results=(rows("y"), state("state")),
    stages=("cached",),
    infer=infer,
    reference=reference,
    sequence_aware=True,
    sums=True,
)
INSTRUCTION = Instruction(
    "carried_delta_rule",
    number=22,
    operands=(rows("row"), rows("dt"), rows("beta"), *_BATCH, shared("w", RAW)),
    results=(rows("y", narrow=True), state("state")),
    attrs=_ATTRS,
    reference=reference,
    sequence_aware=True,
    sums=True,
)
