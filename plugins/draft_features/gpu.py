"""Writes rows to the places of a table that a list names. A program takes BLOCK columns of one row.

A row of C columns of b bytes moves 2 b C bytes. Nothing is read twice.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def put_rows_kernel(x, ids, table, C: tl.constexpr, BLOCK: tl.constexpr):
    """Computes table[ids[r]] = x[r] for x [R, C]. A row whose number is negative is written nowhere."""
    row = tl.program_id(0)
    place = tl.load(ids + row)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (at < C) & (place >= 0)
    value = tl.load(x + row.to(tl.int64) * C + at, mask=inside, other=0.0)
    tl.store(table + place.to(tl.int64) * C + at, value.to(table.dtype.element_ty), mask=inside)
