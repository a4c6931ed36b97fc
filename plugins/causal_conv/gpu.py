"""Convolves the columns of ragged sequences, whose last inputs are kept from step to step, in float32.

A program takes BLOCK columns of one sequence, ROWS tokens at a time. An input before the step comes from the state.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tensorwright.plugins.elementwise.gpu import activate
from tensorwright.plugins.gpu.sequences import sequence_of


@triton.jit
def _inputs(x, states, source, wanted, inside, column, start, carried, C: tl.constexpr, WIDTH: tl.constexpr):
    """Returns inputs [rows, BLOCK] by their numbers in the step; those below 0 are in the state, or 0."""
    now = wanted & (source >= 0)
    mask = now[:, None] & inside[None, :]
    value = tl.load(x + (start + source)[:, None] * C + column[None, :], mask=mask, other=0.0).to(tl.float32)
    if WIDTH > 1:
        mask = (wanted & (source < 0) & carried)[:, None] & inside[None, :]
        value += tl.load(states + (source + (WIDTH - 1))[:, None] * C + column[None, :], mask=mask, other=0.0)
    return value


@triton.jit
def carried_conv_kernel(
    x, w, bias, seq_starts, context_lens, state_slots, states, y, C: tl.constexpr, WIDTH: tl.constexpr,
    ACTIVATION: tl.constexpr, SLOT: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, KEPT: tl.constexpr,
):  # fmt: skip
    """The grid is: sequences, C / BLOCK. x and y [T, C], w [WIDTH, C], bias [C] or absent; a state is [WIDTH - 1, C],
    oldest first; KEPT is a power of two that holds its rows."""
    start, count, at, carried = sequence_of(tl.program_id(0), seq_starts, context_lens, state_slots, SLOT)
    if count == 0:
        return
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < C
    own = states + at
    for first in range(0, count, ROWS):
        token = first + tl.arange(0, ROWS)
        known = token < count
        acc = tl.zeros((ROWS, BLOCK), tl.float32)
        for j in tl.static_range(WIDTH):
            tap = tl.load(w + j * C + column, mask=inside, other=0.0)
            source = token - (WIDTH - 1) + j
            acc += _inputs(x, own, source, known, inside, column, start, carried, C, WIDTH) * tap[None, :]
        if bias is not None:
            acc += tl.load(bias + column, mask=inside, other=0.0)[None, :]
        if ACTIVATION != "none":
            acc = activate(acc, ACTIVATION)
        to = y + (start + token)[:, None] * C + column[None, :]
        tl.store(to, acc.to(y.dtype.element_ty), mask=known[:, None] & inside[None, :])
    if WIDTH > 1:
        place = tl.arange(0, KEPT)
        wanted = place < WIDTH - 1
        last = _inputs(x, own, place + (count - (WIDTH - 1)), wanted, inside, column, start, carried, C, WIDTH)
        tl.debug_barrier()  # every thread has read the state before any writes it
        tl.store(own + place[:, None] * C + column[None, :], last, mask=wanted[:, None] & inside[None, :])
