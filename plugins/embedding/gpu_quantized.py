"""Gathers rows of a table of 8-bit integers and restores them. A program takes BLOCK columns of one row."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def quantized_rows_kernel(
    values, scales, ids, y, first, count, scale, row_bytes, groups,
    C: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Computes y[t] = scale * row ids[t] - first, where element c of a row is values[row, c] scales[row, c // GROUP];
    zeros for rows that the table [count, row_bytes] has not."""
    row = tl.program_id(0)
    place = tl.load(ids + row) - first
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < C
    known = inside & (place >= 0) & (place < count)
    wide = place.to(tl.int64)
    value = tl.load(values + wide * row_bytes + at, mask=known, other=0).to(tl.float32)
    step = tl.load(scales + wide * groups + at // GROUP, mask=known, other=0.0).to(tl.float32)
    tl.store(y + row.to(tl.int64) * C + at, (value * step * scale).to(y.dtype.element_ty), mask=inside)
