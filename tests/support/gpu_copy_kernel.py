"""The smallest kernel: y = x, plus a bias where there is one, times a factor. For tests of what is around kernels."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def copy_kernel(x, y, bias, n, stride, factor, BLOCK: tl.constexpr):
    """Column 0 of x [n, stride], a dense y [n]."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i * stride, mask=i < n).to(tl.float32) * factor
    if bias is not None:
        value += tl.load(bias + i, mask=i < n)
    tl.store(y + i, value.to(y.dtype.element_ty), mask=i < n)
