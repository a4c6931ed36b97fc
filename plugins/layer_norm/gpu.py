"""Adds a residual and normalises the sum. Each program keeps one row in registers.

A row of C channels of b bytes moves 4 b C bytes. The weights (8 C) come from the L2 cache after the first row.
Norms without a sum are in plugins/rms_norm/gpu_columns.py.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def add_layer_norm_kernel(x, residual, w, b, y, total, eps, weight_offset, C: tl.constexpr, BLOCK: tl.constexpr):
    """Stores total = x + residual, rounded to its type, and y, the layer norm of the stored sum, all [rows, C].

    w, and b unless it is absent, are float32 [C]. BLOCK >= C.
    """
    row = tl.program_id(0).to(tl.int64) * C
    at = tl.arange(0, BLOCK)
    inside = at < C
    value = tl.load(x + row + at, mask=inside, other=0.0).to(tl.float32)
    value += tl.load(residual + row + at, mask=inside, other=0.0).to(tl.float32)
    stored = value.to(total.dtype.element_ty)
    tl.store(total + row + at, stored, mask=inside)
    value = stored.to(tl.float32)
    value = tl.where(inside, value - tl.sum(value) / C, 0.0)
    inverse = tl.rsqrt(tl.sum(value * value) / C + eps)
    weight = tl.load(w + at, mask=inside, other=0.0) + weight_offset
    value = value * inverse * weight
    if b is not None:
        value += tl.load(b + at, mask=inside, other=0.0)
    tl.store(y + row + at, value.to(y.dtype.element_ty), mask=inside)
