"""Computes the RMS norm of whole rows. Each program keeps one row in registers between the sum and the scaling.

A row of C channels of b bytes moves 2 b C bytes in rms_norm, 4 b C in add_rms_norm. The weight (4 C) comes from the L2
cache after the first row. Nothing is read twice.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rms_norm_kernel(x, w, y, eps, weight_offset, C: tl.constexpr, BLOCK: tl.constexpr):
    """Normalises x [rows, C] to y with w [C] float32; one program per row, BLOCK >= C."""
    row = tl.program_id(0).to(tl.int64) * C
    at = tl.arange(0, BLOCK)
    inside = at < C
    value = tl.load(x + row + at, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(w + at, mask=inside, other=0.0) + weight_offset
    inverse = tl.rsqrt(tl.sum(value * value) / C + eps)
    tl.store(y + row + at, (value * inverse * weight).to(y.dtype.element_ty), mask=inside)


@triton.jit
def add_rms_norm_kernel(x, residual, w, y, total, eps, weight_offset, C: tl.constexpr, BLOCK: tl.constexpr):
    """Stores total = x + residual, rounded to its type, and y, the norm of the stored sum."""
    row = tl.program_id(0).to(tl.int64) * C
    at = tl.arange(0, BLOCK)
    inside = at < C
    value = tl.load(x + row + at, mask=inside, other=0.0).to(tl.float32)
    value += tl.load(residual + row + at, mask=inside, other=0.0).to(tl.float32)
    stored = value.to(total.dtype.element_ty)
    tl.store(total + row + at, stored, mask=inside)
    value = stored.to(tl.float32)
    weight = tl.load(w + at, mask=inside, other=0.0) + weight_offset
    inverse = tl.rsqrt(tl.sum(value * value) / C + eps)
    tl.store(y + row + at, (value * inverse * weight).to(y.dtype.element_ty), mask=inside)
