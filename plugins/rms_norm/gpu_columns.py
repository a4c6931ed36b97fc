"""Normalises runs of columns of each row alone: RMS norms and layer norms, of heads of q and k or of a whole row.

A program takes HEADS runs of one row, about 1024 elements, and keeps them in registers. In place, only the runs are
read and written. Else further programs of the row copy the columns outside the runs.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def columns_norm_kernel(
    x, w, b, y, eps, weight_offset,
    N: tl.constexpr, START: tl.constexpr, RUNS: tl.constexpr, WIDTH: tl.constexpr,
    HEADS: tl.constexpr, WIDTH_BLOCK: tl.constexpr, CENTRED: tl.constexpr, PER_HEAD: tl.constexpr,
    COPIED: tl.constexpr, COPY_BLOCK: tl.constexpr,
):  # fmt: skip
    """Computes y [T, N] of x [T, N]: RUNS runs of WIDTH columns from START on are normalised.

    CENTRED subtracts the mean. w and b are float32 [WIDTH], or [RUNS, WIDTH] if PER_HEAD; b may be absent. COPIED
    columns, all that are outside, are copied by the programs after the runs' in y of the grid, COPY_BLOCK by each.
    """
    row = tl.program_id(0).to(tl.int64) * N
    part = tl.program_id(1)
    PARTS: tl.constexpr = (RUNS + HEADS - 1) // HEADS
    if part < PARTS:
        head = part * HEADS + tl.arange(0, HEADS)
        at = tl.arange(0, WIDTH_BLOCK)
        inside = (head < RUNS)[:, None] & (at < WIDTH)[None, :]
        column = head[:, None] * WIDTH + at[None, :]
        value = tl.load(x + row + START + column, mask=inside, other=0.0).to(tl.float32)
        if CENTRED:
            value = tl.where(inside, value - (tl.sum(value, axis=1) / WIDTH)[:, None], 0.0)
        inverse = tl.rsqrt(tl.sum(value * value, axis=1) / WIDTH + eps)[:, None]
        if PER_HEAD:
            weight = tl.load(w + column, mask=inside, other=0.0) + weight_offset
        else:
            weight = (tl.load(w + at, mask=at < WIDTH, other=0.0) + weight_offset)[None, :]
        value = value * inverse * weight
        if b is not None:
            if PER_HEAD:
                value += tl.load(b + column, mask=inside, other=0.0)
            else:
                value += tl.load(b + at, mask=at < WIDTH, other=0.0)[None, :]
        tl.store(y + row + START + column, value.to(y.dtype.element_ty), mask=inside)
    else:
        other = (part - PARTS) * COPY_BLOCK + tl.arange(0, COPY_BLOCK)
        place = tl.where(other < START, other, other + RUNS * WIDTH)
        kept = other < COPIED
        tl.store(y + row + place, tl.load(x + row + place, mask=kept, other=0.0), mask=kept)
