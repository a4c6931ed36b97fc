"""Computes the table of cosines and sines that rotary_kv_write reads. A program takes the angles of one token.

cos and sin are those of CUDA's libdevice, which reduce large arguments exactly (Payne and Hanek) and are right to two
units in the last place of float32 for every angle. The angle itself is a float32, by definition.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rotary_table_kernel(positions, inv_freq, table, scale, HALF: tl.constexpr, BLOCK: tl.constexpr):
    """Stores table [T, 2 HALF] = cos | sin of positions[t] * inv_freq, times scale, all float32; BLOCK >= HALF."""
    token = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < HALF
    angle = tl.load(positions + token).to(tl.float32) * tl.load(inv_freq + at, mask=inside, other=0.0)
    row = table + token.to(tl.int64) * (2 * HALF) + at
    tl.store(row, tl.cos(angle) * scale, mask=inside)
    tl.store(row + HALF, tl.sin(angle) * scale, mask=inside)
