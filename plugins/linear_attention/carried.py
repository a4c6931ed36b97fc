"""carried_linear_attention(row, w){state, heads, states}:  linear_attention of a ragged batch

A row holds v, k and q of one token side by side, and w the slopes of the heads. N = `states`.

row: [T, heads P + 2 heads N], w: [heads].  y: [T, heads P].  The state of a sequence is [heads, N, P] float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorwright.errors import GraphError
from tensorwright.ir.graph import Shape, Value
from tensorwright.plugins.carried import advance_batch, make_instruction, make_op
from tensorwright.plugins.linear_attention.op import advance
from tensorwright.plugins.rounding import round_to


def infer(inputs: Sequence[Value | None], attrs: dict[str, Any]) -> list[tuple[str, Shape]]:
    """Returns the types of y and of the states. Raises GraphError for operands that do not fit."""
    row, _, _, _, states, w = inputs
    if row is None or states is None or w is None:
        raise GraphError("carried_linear_attention: all operands must be present")
    heads, read = attrs["heads"], 2 * attrs["heads"] * attrs["states"]
    width = row.shape[1] if row.rank == 2 and w.shape == (heads,) else 0
    if not isinstance(width, int) or width <= read or (width - read) % heads:
        raise GraphError(
            f"carried_linear_attention: row must be [tokens, {heads} P + {read}] and w [{heads}], got "
            f"{[list(v.shape) for v in (row, w)]}"
        )
    return [(row.dtype, (row.shape[0], width - read)), (states.dtype, states.shape)]


def reference(inputs: Sequence[Any], attrs: dict[str, Any], act_dtype: str) -> list[Any]:
    """Computes every sequence of the batch. The states are a StateCache of one array [heads, N, P]."""
    row, *batch, w = inputs
    heads, count = attrs["heads"], attrs["states"]
    columns = row.shape[1] - 2 * heads * count
    v, k, q = (x.reshape(len(row), heads, -1) for x in np.split(row, [columns, columns + heads * count], axis=1))

    def advance_sequence(part: slice, state: np.ndarray) -> np.ndarray:
        return advance(v[part], k[part], q[part], w, state)

    y = np.zeros(v.shape, np.float64)
    states = advance_batch(batch, np.zeros((heads, count, v.shape[2]), np.float32), y, advance_sequence)
    return [round_to(y.reshape(len(row), -1).astype(np.float32), act_dtype), states]


OP = make_op("carried_linear_attention", ("row",), ("w",), {"heads": "int", "states": "int"}, infer, reference)
INSTRUCTION = make_instruction(OP, number=25)
