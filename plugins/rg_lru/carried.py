"""carried_rg_lru(x, input, decay, w){state}:  rg_lru of a ragged batch, with its gates

w holds three weights of each channel: p, and the biases of the gates of the input and of the decay.

    log a = -8 softplus(p) sigmoid(decay + decay_bias)
    h     = a h + sqrt(1 - a^2) (x sigmoid(input + input_bias)),  y = h

At the first token of a sequence, h is its gated input whole.

x, input and decay: [T, C], w: [3, C].  y: [T, C].  The state of a sequence has a float32 number for each channel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorwright.errors import GraphError
from tensorwright.ir.graph import Shape, Value
from tensorwright.plugins.carried import advance_batch, make_instruction, make_op
from tensorwright.plugins.rg_lru.op import advance
from tensorwright.plugins.rounding import round_to

RATE = -8.0


def infer(inputs: Sequence[Value | None], attrs: dict[str, Any]) -> list[tuple[str, Shape]]:
    """Returns the types of y and of the states. Raises GraphError for operands that do not fit."""
    x, gate, decay, _, _, _, states, w = inputs
    if x is None or gate is None or decay is None or states is None or w is None:
        raise GraphError("carried_rg_lru: all operands must be present")
    if x.rank != 2 or not gate.shape == decay.shape == x.shape or w.shape != (3, x.shape[1]):
        raise GraphError(
            "carried_rg_lru: x, input and decay must be [tokens, C] and w [3, C], got "
            f"{[list(v.shape) for v in (x, gate, decay, w)]}"
        )
    return [(x.dtype, x.shape), (states.dtype, states.shape)]


def gated(
    x: np.ndarray, gate: np.ndarray, decay: np.ndarray, vectors: Sequence[np.ndarray], fresh: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Returns what each token adds to the state of one sequence, and what it keeps of it: [tokens, C], float64.

    vectors: the logarithm of a where the gate is 1, and the biases of both gates, [C]. fresh: whether the first token
    is that of the sequence.
    """
    rate, input_bias, decay_bias = (vector.astype(np.float64) for vector in vectors)
    log_a = rate / (1.0 + np.exp(-(decay + decay_bias)))
    share = np.sqrt(-np.expm1(2.0 * log_a))
    if fresh:
        share[0] = 1.0
    return share * (x / (1.0 + np.exp(-(gate + input_bias)))), np.exp(log_a)


def reference(inputs: Sequence[Any], attrs: dict[str, Any], act_dtype: str) -> list[Any]:
    """Computes every sequence of the batch. The states are a StateCache of one array [C]."""
    x, gate, decay, *batch, w = inputs
    p, input_bias, decay_bias = w.reshape(3, x.shape[1]).astype(np.float64)
    vectors = (RATE * np.logaddexp(0.0, p), input_bias, decay_bias)
    starts, lengths = batch[0], batch[1]
    fresh = {int(a): int(length) == int(b - a) for a, b, length in zip(starts[:-1], starts[1:], lengths, strict=False)}

    def advance_sequence(part: slice, state: np.ndarray) -> np.ndarray:
        added, kept = gated(x[part], gate[part], decay[part], vectors, fresh[part.start])
        return advance(added, kept, state)

    y = np.zeros(x.shape, np.float32)
    states = advance_batch(batch, np.zeros(x.shape[1], np.float32), y, advance_sequence)
    return [round_to(y, act_dtype), states]


OP = make_op("carried_rg_lru", ("x", "input", "decay"), ("w",), {}, infer, reference)
INSTRUCTION = make_instruction(OP, number=24)
