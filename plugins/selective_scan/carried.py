"""carried_selective_scan(x, dt, b, c, w){state, states}:  selective_scan of a ragged batch

w holds the weights of the channels: the logarithms of -a, one row per state, then d, then dt_bias. N = `states`.

x and dt: [T, C], b and c: [T, N], w: [N + 2, C].  y: [T, C].  The state of a sequence has N float32 numbers for each
channel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorwright.errors import GraphError
from tensorwright.ir.graph import Shape, Value
from tensorwright.plugins.carried import advance_batch, make_instruction, make_op
from tensorwright.plugins.rounding import round_to
from tensorwright.plugins.selective_scan.op import scan


def infer(inputs: Sequence[Value | None], attrs: dict[str, Any]) -> list[tuple[str, Shape]]:
    """Returns the types of y and of the states. Raises GraphError for operands that do not fit."""
    x, dt, b, c, _, _, _, states, w = inputs
    if x is None or dt is None or b is None or c is None or states is None or w is None:
        raise GraphError("carried_selective_scan: all operands must be present")
    count = attrs["states"]
    fits = x.rank == 2 and dt.shape == x.shape and b.shape == c.shape == (x.shape[0], count)
    if not fits or w.shape != (count + 2, x.shape[1]):
        raise GraphError(
            f"carried_selective_scan: x and dt must be [tokens, C], b and c [tokens, {count}] and w "
            f"[{count + 2}, C], got {[list(v.shape) for v in (x, dt, b, c, w)]}"
        )
    return [(x.dtype, x.shape), (states.dtype, states.shape)]


def reference(inputs: Sequence[Any], attrs: dict[str, Any], act_dtype: str) -> list[Any]:
    """Scans every sequence of the batch. The states are a StateCache of one array [C, N]."""
    x, dt, b, c, *batch, w = inputs
    count, channels = attrs["states"], x.shape[1]
    *a_log, d, dt_bias = w.reshape(count + 2, channels).astype(np.float64)
    vectors = (-np.exp(np.stack(a_log, axis=1)), d, dt_bias)

    def advance(part: slice, state: np.ndarray) -> np.ndarray:
        return scan(x[part], dt[part], b[part], c[part], vectors, state)

    y = np.zeros(x.shape, np.float64)
    states = advance_batch(batch, np.zeros((channels, count), np.float32), y, advance)
    return [round_to(y.astype(np.float32), act_dtype), states]


OP = make_op("carried_selective_scan", ("x", "dt", "b", "c"), ("w",), {"states": "int"}, infer, reference)
INSTRUCTION = make_instruction(OP, number=23)
