"""Computes a plain bf16 product in the Triton language: a ceiling for kernels that use tensor cores in the same way."""

from __future__ import annotations

import triton
import triton.language as tl

WIDE = tl.constexpr(8)
"""Tiles of rows over which neighbouring programs share columns of b, so that both stay in the L2 cache."""


@triton.jit
def product_kernel(a, b, c, n, k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """The grid is the tiles of c. Sizes are multiples of the tile."""
    across = n // BLOCK_N
    rows = tl.num_programs(0) // across
    wide = tl.minimum(WIDE, rows)
    stripe = tl.program_id(0) // (wide * across)
    height = tl.minimum(wide, rows - stripe * wide)
    inside = tl.program_id(0) % (wide * across)
    m = (stripe * wide + inside % height) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = inside // height * BLOCK_N + tl.arange(0, BLOCK_N)
    depth = tl.arange(0, BLOCK_K)
    left = a + m.to(tl.int64)[:, None] * k + depth[None, :]
    right = b + depth.to(tl.int64)[:, None] * n + columns[None, :]
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for _ in range(0, k, BLOCK_K):
        acc = tl.dot(tl.load(left), tl.load(right), acc)
        left += BLOCK_K
        right += BLOCK_K * n
    tl.store(c + m.to(tl.int64)[:, None] * n + columns[None, :], acc.to(tl.bfloat16))
