"""Rounds float32 numbers to int8 on a GPU, with the bits of `quantize_activations` and `quantize_heads` in numpy.

Kernels that use these must be compiled without contraction: a product must be rounded before the sum that rounds it.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def scale_of(largest, LEVELS: tl.constexpr):
    """Returns (scale largest / LEVELS, its inverse, whether `largest` is finite); largest: a group's magnitude."""
    finite = largest < float("inf")  # a NaN compares false
    some = finite & (largest >= 7.703719777548943e-34)
    safe = tl.where(some, largest, 1.0)
    scale = tl.where(some, tl.div_rn(safe, LEVELS), tl.where(finite, 0.0, float("nan")))
    return scale, tl.where(some, tl.div_rn(LEVELS, safe), 0.0), finite


@triton.jit
def to_int8(x):
    """Rounds numbers of at most 127 to nearest, ties to even: the sum with 1.5 * 2^23 has no bits below 1."""
    return ((x + 12582912.0) - 12582912.0).to(tl.int8)
