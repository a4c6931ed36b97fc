"""Multiplies the halves of rows, act(gate) * up, in float32, rounded once. A program takes BLOCK columns of one row.

A row moves 3 b C bytes, at b bytes of an element and C columns of the result. Nothing is read twice.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tensorwright.plugins.elementwise.gpu import activate


@triton.jit
def gated_kernel(x, y, ACTIVATION: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr):
    """Computes y [T, C] of x [T, 2 C], the gate's columns and then those of up."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < C
    gate = tl.load(x + row * (2 * C) + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x + row * (2 * C) + C + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * C + at, (activate(gate, ACTIVATION) * up).to(y.dtype.element_ty), mask=inside)
