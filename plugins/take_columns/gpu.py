"""Copies columns of rows: those of a list, or a range. A program takes BLOCK columns of one row.

The range moves 2 b C bytes for C columns of b bytes. The list moves more where columns are far from each other.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def take_columns_kernel(x, columns, y, N: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr):
    """Computes y[t, i] = x[t, columns[i]] for x [T, N], columns float32 [C]: whole numbers from 0 to N - 1."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < C
    column = tl.load(columns + at, mask=inside, other=0.0).to(tl.int32)
    value = tl.load(x + row * N + column, mask=inside, other=0.0)
    tl.store(y + row * C + at, value.to(y.dtype.element_ty), mask=inside)


@triton.jit
def copy_columns_kernel(
    x, y, N: tl.constexpr, START: tl.constexpr, STEP: tl.constexpr, C: tl.constexpr, TO: tl.constexpr, M: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Computes y[t, TO + i] = x[t, START + STEP i] for i < C, x [T, N] and y [T, M]."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < C
    value = tl.load(x + row * N + START + STEP * at, mask=inside, other=0.0)
    tl.store(y + row * M + TO + at, value.to(y.dtype.element_ty), mask=inside)
