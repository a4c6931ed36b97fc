"""Holds the common parts of the attention kernels: pages to rows, and tiles of K and V folded into a running softmax.

M rows of queries (tokens x heads of one KV head) meet BLOCK_N positions at a time. `top` [M] is the largest score so
far, `total` [M] the sum of 2^(score - top), `acc` [M, BLOCK_D] the same sum of V, all float32. Scores are in units of
log2 e: the softmax is one exp2, and its factor is folded into `scale`. The dots run on tensor cores in the activation
type, to which P is rounded as V is. From int8 pages the integers go into the dots directly (exact in fp16 and bf16),
with E4M3 the numbers of these bytes, which are exact there too. K's scales multiply the scores and V's multiply P,
which is then rounded to bf16, whose range holds any scale.

Each thread reads 16 bytes of a tile's K and V rows by asynchronous copies, which run num_stages - 1 tiles ahead. A
tile of BLOCK_N x head_dim in 16 bits takes 2 x 16 KiB at 64 x 128.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tensorwright.plugins.paged_attention.gpu_e4m3 import widen_e4m3

LOG2E = tl.constexpr(1.4426950408889634)
LOWEST = tl.constexpr(-1e30)
"""The first value of `top`. It is finite, so that a row that sees nothing of a tile yields zeros and no NaN."""


@triton.jit
def first_seen(position, window, CHUNKED: tl.constexpr):
    """Returns the first position that a position sees through its window; below 0 it sees all from 0 on. A chunk begins
    at a multiple of its length, and other windows end at the position."""
    return position - position % window if CHUNKED else position - window + 1


@triton.jit
def load_pages(table, start, seen_from, seen_to, BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr):
    """Returns the pages of the BLOCK_N positions from `start`, a multiple of BLOCK_N: a scalar if one page holds them,
    else [BLOCK_N]. Reads only entries of positions in [seen_from, seen_to): others may be -1."""
    if BLOCK_SIZE % BLOCK_N == 0:
        pages = tl.load(table + start // BLOCK_SIZE, mask=start < seen_to, other=0)
    else:
        n = start + tl.arange(0, BLOCK_N)
        pages = tl.load(table + n // BLOCK_SIZE, mask=(n >= seen_from) & (n < seen_to), other=0)
    return pages


@triton.jit
def load_rows(pages, rows, seen, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, MASKED: tl.constexpr):
    """Returns [BLOCK_N, BLOCK_D], zero if not seen: an unwritten slot may hold NaN, and 0 * NaN is NaN."""
    d = tl.arange(0, BLOCK_D)
    pointers = pages + rows[:, None] * HEAD_DIM + d[None, :]
    if MASKED:
        tile = tl.load(pointers, mask=seen[:, None] & (d < HEAD_DIM)[None, :], other=0)
    elif BLOCK_D != HEAD_DIM:
        tile = tl.load(pointers, mask=(d < HEAD_DIM)[None, :], other=0)
    else:
        tile = tl.load(pointers)
    return tile


@triton.jit
def widen(x, kind: tl.constexpr, E4M3: tl.constexpr):
    """Returns the numbers of a tile in the float type `kind`."""
    return widen_e4m3(x, kind) if E4M3 else x.to(kind)


@triton.jit
def cap(score, scale, softcap, HAS_SOFTCAP: tl.constexpr):
    """Returns scale * score, or softcap * tanh(scale * score / softcap), times log2 e (`scale` has that factor)."""
    score = score * scale
    if HAS_SOFTCAP:
        power = tl.exp2(score * (2.0 / softcap))
        score = softcap * LOG2E * (1.0 - 2.0 / (1.0 + power))
    return score


@triton.jit
def fold(
    acc, top, total, q, position, slope, begin, end, seen_from, seen_to, table, kv_head, k_pages, v_pages, k_scales,
    v_scales, scale, softcap, window, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, HAS_WINDOW: tl.constexpr, CHUNKED: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr, HAS_SLOPES: tl.constexpr, INT8: tl.constexpr, E4M3: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Folds tiles of [begin, end), begin a multiple of BLOCK_N. MASKED: `position` [M] decides what each row sees, and
    no position outside [seen_from, seen_to) is read. Otherwise every row sees every position. slope: [M] times log2 e,
    what a score loses for each position between the row's own and the key's."""
    pages = load_pages(table, begin, seen_from, seen_to, BLOCK_SIZE, BLOCK_N)
    for start in tl.range(begin, end, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        seen = (n >= seen_from) & (n < seen_to)
        # These are rows of [pages * kv_heads * block_size]. Pages are loaded a tile ahead, so that copies of K and V
        # do not depend on a load of this tile, which would take the pipeline's stages.
        rows = (pages.to(tl.int64) * KV_HEADS + kv_head) * BLOCK_SIZE + n % BLOCK_SIZE
        pages = load_pages(table, start + BLOCK_N, seen_from, seen_to, BLOCK_SIZE, BLOCK_N)
        k = load_rows(k_pages, rows, seen, HEAD_DIM, BLOCK_D, MASKED)
        score = tl.dot(q, tl.trans(widen(k, q.dtype, E4M3)), input_precision="ieee")
        if INT8:
            score *= tl.load(k_scales + rows, mask=seen, other=0.0)[None, :]
        score = cap(score, scale, softcap, HAS_SOFTCAP)
        if HAS_SLOPES:
            score += slope[:, None] * (n[None, :] - position[:, None]).to(tl.float32)
        if MASKED:
            visible = seen[None, :] & (n[None, :] <= position[:, None])
            if HAS_WINDOW:
                visible = visible & (n[None, :] >= first_seen(position, window, CHUNKED)[:, None])
            score = tl.where(visible, score, float("-inf"))
        higher = tl.maximum(top, tl.max(score, 1))
        p = tl.exp2(score - higher[:, None])
        shrink = tl.exp2(top - higher)
        total = total * shrink + tl.sum(p, 1)
        acc = acc * shrink[:, None]
        v = load_rows(v_pages, rows, seen, HEAD_DIM, BLOCK_D, MASKED)
        if INT8:
            P_TYPE: tl.constexpr = tl.float32 if q.dtype == tl.float32 else tl.bfloat16
            p = (p * tl.load(v_scales + rows, mask=seen, other=0.0)[None, :]).to(P_TYPE)
            acc = tl.dot(p, widen(v, P_TYPE, E4M3), acc, input_precision="ieee")
        else:
            acc = tl.dot(p.to(v.dtype), v, acc, input_precision="ieee")
        top = higher
    return acc, top, total


@triton.jit
def fold_all(
    acc, top, total, q, position, slope, begin, inner, edge, end, seen_from, table, kv_head, k_pages, v_pages,
    k_scales, v_scales, scale, softcap, window, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, HAS_WINDOW: tl.constexpr,
    CHUNKED: tl.constexpr, HAS_SOFTCAP: tl.constexpr, HAS_SLOPES: tl.constexpr, INT8: tl.constexpr,
    E4M3: tl.constexpr,
):  # fmt: skip
    """Folds positions [begin, end) in order. All rows see the tiles of [inner, edge), which need no mask."""
    if HAS_WINDOW:
        acc, top, total = fold(
            acc, top, total, q, position, slope, begin, inner, seen_from, end, table, kv_head, k_pages, v_pages,
            k_scales, v_scales, scale, softcap, window, KV_HEADS, HEAD_DIM, BLOCK_SIZE, BLOCK_N, BLOCK_D, HAS_WINDOW,
            CHUNKED, HAS_SOFTCAP, HAS_SLOPES, INT8, E4M3, True,
        )  # fmt: skip
    acc, top, total = fold(
        acc, top, total, q, position, slope, inner, edge, seen_from, end, table, kv_head, k_pages, v_pages, k_scales,
        v_scales, scale, softcap, window, KV_HEADS, HEAD_DIM, BLOCK_SIZE, BLOCK_N, BLOCK_D, HAS_WINDOW, CHUNKED,
        HAS_SOFTCAP, HAS_SLOPES, INT8, E4M3, False,
    )  # fmt: skip
    acc, top, total = fold(
        acc, top, total, q, position, slope, edge, end, seen_from, end, table, kv_head, k_pages, v_pages, k_scales,
        v_scales, scale, softcap, window, KV_HEADS, HEAD_DIM, BLOCK_SIZE, BLOCK_N, BLOCK_D, HAS_WINDOW, CHUNKED,
        HAS_SOFTCAP, HAS_SLOPES, INT8, E4M3, True,
    )  # fmt: skip
    return acc, top, total
