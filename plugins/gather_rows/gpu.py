"""Copies rows of a table by their numbers, times a number. A program takes BLOCK columns of one row.

A row of C columns of b bytes moves 2 b C bytes. Nothing is read twice.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def gather_rows_kernel(table, ids, y, first, count, scale, C: tl.constexpr, BLOCK: tl.constexpr):
    """Computes y[t] = scale * table[ids[t] - first] for table [count, C]; zeros for numbers that the table has not."""
    row = tl.program_id(0)
    place = tl.load(ids + row) - first
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < C
    known = (place >= 0) & (place < count)
    value = tl.load(table + place.to(tl.int64) * C + at, mask=inside & known, other=0.0).to(tl.float32) * scale
    tl.store(y + row.to(tl.int64) * C + at, value.to(y.dtype.element_ty), mask=inside)
