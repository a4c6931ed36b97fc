"""carried_conv(x, w, bias?){state, activation}:  causal_conv of a ragged batch, whose state is a sequence's last inputs

x: [T, C], w: [W, C], bias: [C].  y: [T, C].  The state of a sequence is [W - 1, C] float32: the inputs before its next
token, oldest first, zeros where there are none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorwright.errors import GraphError
from tensorwright.ir.graph import Shape, Value
from tensorwright.plugins.carried import advance_batch, make_instruction, make_op
from tensorwright.plugins.causal_conv.op import ACTIVATIONS, convolve
from tensorwright.plugins.rounding import round_to


def infer(inputs: Sequence[Value | None], attrs: dict[str, Any]) -> list[tuple[str, Shape]]:
    """Returns the types of y and of the states. Raises GraphError for operands that do not fit."""
    x, _, _, _, states, w, bias = (*inputs, None)[:7]
    if x is None or w is None or states is None or x.rank != 2 or w.rank != 2 or w.shape[1] != x.shape[1]:
        raise GraphError("carried_conv: x and w must be [tokens, C] and [W, C], and the states must be present")
    if bias is not None and bias.shape != w.shape[1:]:
        raise GraphError(f"carried_conv: bias must be {list(w.shape[1:])}, got {list(bias.shape)}")
    return [(x.dtype, x.shape), (states.dtype, states.shape)]


def reference(inputs: Sequence[Any], attrs: dict[str, Any], act_dtype: str) -> list[Any]:
    """Convolves every sequence of the batch. The states are a StateCache of one array [W - 1, C]."""
    x, *batch = inputs[:5]
    w, bias = (*inputs[5:], None)[:2]
    w = w.reshape(-1, x.shape[1])

    def advance(part: slice, state: np.ndarray) -> np.ndarray:
        rows = x[part].astype(np.float32)
        y = convolve(rows, w, bias, attrs["activation"], state)
        state[:] = np.concatenate([state, rows])[len(rows) :]
        return y

    y = np.zeros(x.shape, np.float64)
    states = advance_batch(batch, np.zeros((len(w) - 1, x.shape[1]), np.float32), y, advance)
    return [round_to(y.astype(np.float32), act_dtype), states]


OP = make_op("carried_conv", ("x",), ("w", "bias?"), {"activation": "str"}, infer, reference)
INSTRUCTION = make_instruction(OP, number=20, words={"activation": ACTIVATIONS})
