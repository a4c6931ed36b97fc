"""carried_scan(row, dt, w){state, heads, groups, states, ...}:  state_space_scan of a ragged batch

A row holds x, b and c of one token side by side, and w the weights of the heads: the logarithm of -a, then d, then
dt_bias. N = `states`.

row: [T, heads P + 2 groups N], dt: [T, heads], w: [3, heads].  y: [T, heads P].  The state of a sequence is
[heads, N, P] float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorwright.errors import GraphError
from tensorwright.ir.graph import Shape, Value
from tensorwright.plugins.carried import advance_batch, make_instruction, make_op
from tensorwright.plugins.rounding import round_to
from tensorwright.plugins.state_space_scan.op import scan


def infer(inputs: Sequence[Value | None], attrs: dict[str, Any]) -> list[tuple[str, Shape]]:
    """Returns the types of y and of the states. Raises GraphError for operands that do not fit."""
    row, dt, _, _, _, states, w = inputs
    if row is None or dt is None or states is None or w is None:
        raise GraphError("carried_scan: all operands must be present")
    heads, shared_columns = attrs["heads"], 2 * attrs["groups"] * attrs["states"]
    fits = row.rank == dt.rank == 2 and dt.shape[1] == heads and w.shape == (3, heads)
    width = row.shape[1] if fits else 0
    if not isinstance(width, int) or width <= shared_columns or (width - shared_columns) % heads:
        raise GraphError(
            f"carried_scan: row, dt and w must be [tokens, {heads} P + {shared_columns}], [tokens, {heads}] and "
            f"[3, {heads}], got {[list(v.shape) for v in (row, dt, w)]}"
        )
    return [(row.dtype, (row.shape[0], width - shared_columns)), (states.dtype, states.shape)]


def reference(inputs: Sequence[Any], attrs: dict[str, Any], act_dtype: str) -> list[Any]:
    """Scans every sequence of the batch. The states are a StateCache of one array [heads, N, P]."""
    row, dt, *batch, w = inputs
    heads, groups, count = attrs["heads"], attrs["groups"], attrs["states"]
    a_log, d, dt_bias = w.reshape(3, heads).astype(np.float64)
    x, b, c = np.split(row, [row.shape[1] - 2 * groups * count, row.shape[1] - groups * count], axis=1)
    x, b, c = (part.reshape(len(row), n, -1) for part, n in ((x, heads), (b, groups), (c, groups)))
    limits = (attrs["dt_min"], attrs["dt_max"])

    def advance(part: slice, state: np.ndarray) -> np.ndarray:
        return scan(x[part], dt[part], b[part], c[part], -np.exp(a_log), d, dt_bias, limits, state)

    y = np.zeros(x.shape, np.float64)
    states = advance_batch(batch, np.zeros((heads, count, x.shape[2]), np.float32), y, advance)
    return [round_to(y.reshape(len(row), -1).astype(np.float32), act_dtype), states]


_ATTRS = {"heads": "int", "groups": "int", "states": "int", "dt_min": "float", "dt_max": "float"}
OP = make_op("carried_scan", ("row", "dt"), ("w",), _ATTRS, infer, reference)
INSTRUCTION = make_instruction(OP, number=21)
