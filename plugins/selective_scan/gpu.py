"""Scans ragged sequences as Mamba-1 does, token after token in float32: a program takes BLOCK channels of one sequence,
whose states lie in registers."""

from __future__ import annotations

import triton
import triton.language as tl

from tensorwright.plugins.elementwise.gpu import activate
from tensorwright.plugins.gpu.sequences import sequence_of


@triton.jit
def carried_selective_scan_kernel(
    x, dt, b, c, w, seq_starts, context_lens, state_slots, states, y, C: tl.constexpr, N: tl.constexpr,
    SLOT: tl.constexpr, BLOCK: tl.constexpr, N_BLOCK: tl.constexpr,
):  # fmt: skip
    """The grid is: sequences, C / BLOCK. x, dt and y [T, C], b and c [T, N], w [N + 2, C]; a state is [C, N]."""
    start, count, at, carried = sequence_of(tl.program_id(0), seq_starts, context_lens, state_slots, SLOT)
    if count == 0:
        return
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    n = tl.arange(0, N_BLOCK)
    inside = column < C
    some = n < N
    mask = inside[:, None] & some[None, :]
    own = states + at + column[:, None] * N + n[None, :]
    h = tl.load(own, mask=mask & carried, other=0.0)
    a = -tl.exp(tl.load(w + n[None, :] * C + column[:, None], mask=mask, other=0.0))
    skip = tl.load(w + N * C + column, mask=inside, other=0.0)
    shift = tl.load(w + (N + 1) * C + column, mask=inside, other=0.0)
    for t in range(count):
        row = (start + t) * C + column
        value = tl.load(x + row, mask=inside, other=0.0).to(tl.float32)
        step = activate(tl.load(dt + row, mask=inside, other=0.0).to(tl.float32) + shift, "softplus")
        into = tl.load(b + (start + t) * N + n, mask=some, other=0.0).to(tl.float32)
        out = tl.load(c + (start + t) * N + n, mask=some, other=0.0).to(tl.float32)
        h = tl.exp(step[:, None] * a) * h + (step * value)[:, None] * into[None, :]
        result = tl.sum(h * out[None, :], 1) + skip * value
        tl.store(y + row, result.to(y.dtype.element_ty), mask=inside)
    tl.debug_barrier()  # every thread has read the state before any writes it
    tl.store(own, h, mask=mask)
