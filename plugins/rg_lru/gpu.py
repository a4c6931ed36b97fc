"""Computes the gated recurrence of RecurrentGemma over ragged sequences, token after token in float32: a program takes
BLOCK channels of one sequence."""

from __future__ import annotations

import triton
import triton.language as tl

from tensorwright.plugins.elementwise.gpu import activate
from tensorwright.plugins.gpu.sequences import sequence_of


@triton.jit
def _minus_expm1(x):
    """1 - exp(x) for x <= 0: the first terms of its series near 0, where the difference would cancel."""
    near = -x * (1.0 + x * (0.5 + x * (1.0 / 6.0 + x * (1.0 / 24.0))))
    return tl.where(x > -0.02, near, 1.0 - tl.exp(x))


@triton.jit
def carried_rg_lru_kernel(
    x, input, decay, w, seq_starts, context_lens, state_slots, states, y, rate, C: tl.constexpr,
    SLOT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The grid is: sequences, C / BLOCK. x, input, decay and y [T, C], w [3, C]; a state is [C]. rate: log a where the
    decay's gate and softplus(p) are 1."""
    start, count, at, carried = sequence_of(tl.program_id(0), seq_starts, context_lens, state_slots, SLOT)
    if count == 0:
        return
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < C
    own = states + at + column
    h = tl.load(own, mask=inside & carried, other=0.0)
    rates = rate * activate(tl.load(w + column, mask=inside, other=0.0), "softplus")
    input_bias = tl.load(w + C + column, mask=inside, other=0.0)
    decay_bias = tl.load(w + 2 * C + column, mask=inside, other=0.0)
    first = tl.where(carried, -1, 0)  # the first token of a sequence enters whole
    for t in range(count):
        row = (start + t) * C + column
        value = tl.load(x + row, mask=inside, other=0.0).to(tl.float32)
        gate = activate(tl.load(input + row, mask=inside, other=0.0).to(tl.float32) + input_bias, "sigmoid")
        kept = activate(tl.load(decay + row, mask=inside, other=0.0).to(tl.float32) + decay_bias, "sigmoid")
        log_a = rates * kept
        share = tl.sqrt(_minus_expm1(2.0 * log_a))
        share = tl.where(t == first, 1.0, share)
        h = tl.exp(log_a) * h + share * (value * gate)
        tl.store(y + row, h.to(y.dtype.element_ty), mask=inside)
    tl.debug_barrier()  # every thread has read the state before any writes it
    tl.store(own, h, mask=inside)
