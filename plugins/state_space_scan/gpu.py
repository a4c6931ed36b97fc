"""Scans ragged sequences as Mamba-2 and Lightning Attention do, token after token in float32: a program takes P_BLOCK
columns of one head of one sequence, whose states lie in registers."""

from __future__ import annotations

import triton
import triton.language as tl

from tensorwright.plugins.elementwise.gpu import activate
from tensorwright.plugins.gpu.sequences import sequence_of


@triton.jit
def carried_scan_kernel(
    row, dt, w, seq_starts, context_lens, state_slots, states, y, dt_min, dt_max, HEADS: tl.constexpr,
    GROUPS: tl.constexpr, N: tl.constexpr, P: tl.constexpr, STEPPED: tl.constexpr, SLOT: tl.constexpr,
    N_BLOCK: tl.constexpr, P_BLOCK: tl.constexpr,
):  # fmt: skip
    """The grid is: sequences, HEADS, P / P_BLOCK. row [T, HEADS P + 2 GROUPS N] holds x, b and c, y [T, HEADS P]; a
    state is [HEADS, N, P].

    STEPPED: dt [T, HEADS], and w [3, HEADS] holds log(-a), d and dt_bias. Otherwise each step is 1, d is 0, and w
    [HEADS] holds -a.
    """
    start, count, at, carried = sequence_of(tl.program_id(0), seq_starts, context_lens, state_slots, SLOT)
    if count == 0:
        return
    head = tl.program_id(1)
    group = head // (HEADS // GROUPS)
    n = tl.arange(0, N_BLOCK)
    p = tl.program_id(2) * P_BLOCK + tl.arange(0, P_BLOCK)
    some = n < N
    inside = p < P
    mask = some[:, None] & inside[None, :]
    own = states + at + (head * N + n)[:, None] * P + p[None, :]
    h = tl.load(own, mask=mask & carried, other=0.0)
    WIDE: tl.constexpr = HEADS * P + 2 * GROUPS * N
    if STEPPED:
        a = -tl.exp(tl.load(w + head))
        skip = tl.load(w + HEADS + head)
        shift = tl.load(w + 2 * HEADS + head)
    else:
        decay = tl.exp(-tl.load(w + head))
    for t in range(count):
        own_row = row + (start + t) * WIDE
        value = tl.load(own_row + head * P + p, mask=inside, other=0.0).to(tl.float32)
        of_group = own_row + HEADS * P + group * N + n
        into = tl.load(of_group, mask=some, other=0.0).to(tl.float32)
        out = tl.load(of_group + GROUPS * N, mask=some, other=0.0).to(tl.float32)
        if STEPPED:
            step = activate(tl.load(dt + (start + t) * HEADS + head).to(tl.float32) + shift, "softplus")
            step = tl.minimum(tl.maximum(step, dt_min), dt_max)
            h = tl.exp(step * a) * h + into[:, None] * (step * value)[None, :]
            result = tl.sum(h * out[:, None], 0) + skip * value
        else:
            h = decay * h + into[:, None] * value[None, :]
            result = tl.sum(h * out[:, None], 0)
        to = y + ((start + t) * HEADS + head) * P + p
        tl.store(to, result.to(y.dtype.element_ty), mask=inside)
    tl.debug_barrier()  # every thread has read the state before any writes it
    tl.store(own, h, mask=mask)
