"""carried_conv(x, w, bias?){state, activation}:  causal_conv of a ragged batch, whose state is a sequence's last inputs

x: [T, C], w: [W, C], bias: [C].  y: [T, C].  The state of a sequence is [W - 1, C] float32: the inputs before its next
token, oldest first, zeros where there are none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorwright.engine_format.weight_layouts import RAW
from tensorwright.errors import GraphError
from tensorwright.ir.graph import Shape, Value
from tensorwright.ir.records import Instruction, Op, metadata, rows, shared, state
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
    x, seq_starts, context_lens, state_slots, states, w, bias = (*inputs, None)[:7]
    w = w.reshape(-1, x.shape[1])
    y, after = np.zeros(x.shape, np.float64), {}
    zero = (np.zeros((len(w) - 1, x.shape[1]), np.float32),)
    for slot, begin, end, (before,) in states.read_batch(seq_starts, context_lens, state_slots, zero):
        part = x[begin:end].astype(np.float32)
        y[begin:end] = convolve(part, w, bias, attrs["activation"], before)
        after[slot] = (np.concatenate([before, part])[len(part) :],)
    return [round_to(y.astype(np.float32), act_dtype), states.write(after)]


_BATCH = (metadata("seq_starts"), metadata("context_lens"), metadata("state_slots"), state("state"))
OP = Op(
    "carried_conv",
    operands=(rows("x"), *_BATCH, shared("w", wide=True), shared("bias?", wide=True)),
    attrs={"state": "int", "activation": "str"},
    results=(rows("y"), state("state")),
    stages=("cached",),
    infer=infer,
    reference=reference,
    sequence_aware=True,
    sums=True,
)
INSTRUCTION = Instruction(
    "carried_conv",
    number=20,
    operands=(rows("x"), *_BATCH, shared("w", RAW), shared("bias?", RAW)),
    results=(rows("y", narrow=True), state("state")),
    attrs=OP.attrs,
    words={"activation": ACTIVATIONS},
    reference=reference,
    sequence_aware=True,
    sums=True,
)
