"""Rotates q and k, and writes k and v into the pages, in one pass over the qkv rows.

A program takes HEADS heads of one token and one kind (q, k or v): 16 bytes per thread at heads of 64 and 128. A token
reads (H + 2 Hkv) D of the activation type and writes H D of it and 2 Hkv D of the cache's type. The table's row (4
rotary_dim bytes) comes from L1 and L2 for all heads but the first. An int8 cache adds 8 Hkv bytes of scales.

The kernel is compiled without contraction: products are rounded before they are added, as in the definition, and
the int8 or E4M3 values of the cache are the definition's.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tensorwright.plugins.paged_attention.gpu_e4m3 import to_e4m3
from tensorwright.plugins.quantized_matmul.gpu_int8 import scale_of, to_int8


@triton.jit
def _to_bytes(x, inverse, finite, E4M3: tl.constexpr):
    scaled = tl.where(finite[:, None], x, 0.0) * inverse[:, None]
    return to_e4m3(scaled) if E4M3 else to_int8(scaled)


@triton.jit
def _largest(x):
    """Returns each row's largest magnitude; infinity if one is NaN, because a maximum may ignore a NaN."""
    return tl.max(tl.where(x == x, tl.abs(x), float("inf")), axis=1)


@triton.jit
def _rotated(x, table, heads, inside, D: tl.constexpr, HALF: tl.constexpr, HALF_BLOCK: tl.constexpr):
    """Returns the rotated halves of the first 2 HALF dimensions of these heads, each float32 [HEADS, HALF_BLOCK]."""
    at = tl.arange(0, HALF_BLOCK)
    mask = inside[:, None] & (at < HALF)[None, :]
    first = tl.load(x + heads[:, None] * D + at[None, :], mask=mask, other=0.0).to(tl.float32)
    second = tl.load(x + heads[:, None] * D + HALF + at[None, :], mask=mask, other=0.0).to(tl.float32)
    cos = tl.load(table + at, mask=at < HALF, other=0.0)[None, :]
    sin = tl.load(table + HALF + at, mask=at < HALF, other=0.0)[None, :]
    return first * cos - second * sin, second * cos + first * sin


@triton.jit
def _straight(x, heads, inside, D: tl.constexpr, START: tl.constexpr, BLOCK: tl.constexpr):
    """Returns the dimensions from START on, float32 [HEADS, BLOCK]."""
    at = START + tl.arange(0, BLOCK)
    mask = inside[:, None] & (at < D)[None, :]
    return tl.load(x + heads[:, None] * D + at[None, :], mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _put(to, rows, inside, x, START: tl.constexpr, END: tl.constexpr, BLOCK: tl.constexpr):
    """Stores x [HEADS, BLOCK] in dimensions START..END of the rows at these offsets, in the target's type."""
    at = tl.arange(0, BLOCK)
    mask = inside[:, None] & (START + at < END)[None, :]
    tl.store(to + rows[:, None] + START + at[None, :], x.to(to.dtype.element_ty), mask=mask)


@triton.jit
def _write_heads(
    x,
    table,
    to,
    rows,
    scales,
    scale_rows,
    heads,
    inside,
    written,
    D: tl.constexpr,
    HALF: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    REST_BLOCK: tl.constexpr,
    QUANTIZED: tl.constexpr,
    E4M3: tl.constexpr,
):
    """Writes heads of x to their rows, the first 2 HALF dimensions rotated; bytes with scales if QUANTIZED, which are
    E4M3 numbers or integers."""
    if HALF > 0:
        first, second = _rotated(x, table, heads, inside, D, HALF, HALF_BLOCK)
    if REST_BLOCK > 0:
        rest = _straight(x, heads, inside, D, 2 * HALF, REST_BLOCK)
    if QUANTIZED:
        if HALF > 0:
            largest = tl.maximum(_largest(first), _largest(second))
            if REST_BLOCK > 0:
                largest = tl.maximum(largest, _largest(rest))
        else:
            largest = _largest(rest)
        scale, inverse, finite = scale_of(largest, 448.0 if E4M3 else 127.0)
        tl.store(scales + scale_rows, scale, mask=written)
        if HALF > 0:
            first = _to_bytes(first, inverse, finite, E4M3)
            second = _to_bytes(second, inverse, finite, E4M3)
        if REST_BLOCK > 0:
            rest = _to_bytes(rest, inverse, finite, E4M3)
    if HALF > 0:
        _put(to, rows, written, first, 0, HALF, HALF_BLOCK)
        _put(to, rows, written, second, HALF, 2 * HALF, HALF_BLOCK)
    if REST_BLOCK > 0:
        _put(to, rows, written, rest, 2 * HALF, D, REST_BLOCK)


@triton.jit
def rotary_kv_write_kernel(
    qkv,
    table,
    slots,
    q,
    k_pages,
    v_pages,
    k_scales,
    v_scales,
    page_stride,
    head_stride,
    block_size,
    H: tl.constexpr,
    KV: tl.constexpr,
    D: tl.constexpr,
    HALF: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    REST_BLOCK: tl.constexpr,
    HEADS: tl.constexpr,
    QUANTIZED: tl.constexpr,
    E4M3: tl.constexpr,
):
    """qkv [T, (H + 2 KV) D], table [T, 2 HALF] float32, slots [T], q [T, H D], pages [P, KV, block_size, D], scales
    [P, KV, block_size]. Program (t, i) takes the i-th HEADS heads, of q first, then of k, then of v. HALF_BLOCK and
    REST_BLOCK are powers of two that hold HALF and D - 2 HALF, or 0 for none. A slot below 0 is not written. With KV 0
    there are neither slots nor pages."""
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    q_parts: tl.constexpr = (H + HEADS - 1) // HEADS
    kv_parts: tl.constexpr = (KV + HEADS - 1) // HEADS
    lane = tl.arange(0, HEADS)
    row = qkv + token * ((H + 2 * KV) * D)
    angles = table
    if HALF > 0:
        angles = table + token * (2 * HALF)
    if part < q_parts:
        heads = part * HEADS + lane
        inside = heads < H
        _write_heads(
            row, angles, q, token * (H * D) + heads * D, q, heads, heads, inside, inside,
            D, HALF, HALF_BLOCK, REST_BLOCK, False, False,
        )  # fmt: skip
    elif KV > 0:
        slot = tl.load(slots + token)
        page = (slot // block_size).to(tl.int64)
        offset = slot % block_size
        is_k = part < q_parts + kv_parts
        heads = (part - q_parts - tl.where(is_k, 0, kv_parts)) * HEADS + lane
        inside = heads < KV
        written = inside & (slot >= 0)
        rows = page * page_stride + heads.to(tl.int64) * head_stride + offset * D
        scale_rows = (page * KV + heads) * block_size + offset
        if is_k:
            _write_heads(
                row + H * D, angles, k_pages, rows, k_scales, scale_rows, heads, inside, written,
                D, HALF, HALF_BLOCK, REST_BLOCK, QUANTIZED, E4M3,
            )  # fmt: skip
        else:
            _write_heads(
                row + (H + KV) * D, angles, v_pages, rows, v_scales, scale_rows, heads, inside, written,
                D, 0, 0, triton.next_power_of_2(D), QUANTIZED, E4M3,
            )  # fmt: skip
