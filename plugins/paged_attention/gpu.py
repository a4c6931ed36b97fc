"""Computes prefill: attention of every sequence with more than one token, tiles of queries against pages of K and V.

A tile is BLOCK_Q tokens of one sequence times HEADS query heads of one KV head: BLOCK_M rows, so that grouped and
multi-query heads read each page once. The host knows only shapes, so the grid is an upper bound, tokens // BLOCK_Q +
seqs tiles: sequence s starts at tile seq_starts[s] // BLOCK_Q + s, and there are enough tiles up to the next sequence.
A program finds its sequence by bisection of seq_starts. Programs beyond the last tile end at once.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tensorwright.plugins.paged_attention.gpu_fold import LOG2E, LOWEST, first_seen, fold_all


@triton.jit
def find_sequence(seq_starts, seqs, tile, BLOCK_Q: tl.constexpr):
    """Returns the last sequence whose first tile is not behind `tile`."""
    low = 0
    high = seqs - 1
    while low < high:
        middle = (low + high + 1) // 2
        if tl.load(seq_starts + middle) // BLOCK_Q + middle <= tile:
            low = middle
        else:
            high = middle - 1
    return low


@triton.jit
def attention_prefill_kernel(
    q, k_pages, v_pages, k_scales, v_scales, seq_starts, context_lens, block_tables, sinks, slopes, out, seqs,
    max_blocks, q_stride, out_stride, scale, softcap, window, HEADS: tl.constexpr, GROUP: tl.constexpr,
    KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, HAS_WINDOW: tl.constexpr, CHUNKED: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr, HAS_SINKS: tl.constexpr, HAS_SLOPES: tl.constexpr, INT8: tl.constexpr,
    E4M3: tl.constexpr,
):  # fmt: skip
    """The grid is: tiles, KV heads * parts of a group of HEADS heads.

    q, out [tokens, KV_HEADS * GROUP * HEAD_DIM]; pages [pages, KV_HEADS, BLOCK_SIZE, HEAD_DIM], scales
    [pages, KV_HEADS, BLOCK_SIZE].
    """
    BLOCK_Q: tl.constexpr = BLOCK_M // HEADS
    PARTS: tl.constexpr = (GROUP + HEADS - 1) // HEADS
    tile = tl.num_programs(0) - 1 - tl.program_id(0)  # tiles with the most positions run first
    seq = find_sequence(seq_starts, seqs, tile, BLOCK_Q)
    start = tl.load(seq_starts + seq)
    count = tl.load(seq_starts + seq + 1) - start
    first_token = (tile - (start // BLOCK_Q + seq)) * BLOCK_Q
    if (count == 1) | (first_token >= count):
        return
    kv_head = tl.program_id(1) // PARTS
    row = tl.arange(0, BLOCK_M)
    token = first_token + row // HEADS
    in_group = tl.program_id(1) % PARTS * HEADS + row % HEADS
    valid = (row < BLOCK_Q * HEADS) & (token < count) & (in_group < GROUP)
    head = kv_head * GROUP + in_group
    d = tl.arange(0, BLOCK_D)
    mask = valid[:, None] & (d < HEAD_DIM)[None, :]
    column = head[:, None] * HEAD_DIM + d[None, :]
    at = (start + token).to(tl.int64)[:, None]
    rows_of_q = tl.load(q + at * q_stride + column, mask=mask, other=0)

    # first: the position of the sequence's first token. [begin, end): positions that any row of the tile sees;
    # [inner, causal): the whole tiles that all rows see, which need no mask.
    context = tl.load(context_lens + seq)
    first = context - count
    end = tl.minimum(first + first_token + BLOCK_Q, context)
    seen_from = 0
    inner = 0
    if HAS_WINDOW:
        seen_from = tl.maximum(first_seen(first + first_token, window, CHUNKED), 0)
        inner = tl.minimum(tl.cdiv(tl.maximum(first_seen(end - 1, window, CHUNKED), 0), BLOCK_N) * BLOCK_N, end)
    begin = seen_from // BLOCK_N * BLOCK_N
    causal = tl.maximum((first + first_token + 1) // BLOCK_N * BLOCK_N, inner)

    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    top = tl.full([BLOCK_M], LOWEST, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    if HAS_SINKS:
        top = tl.load(sinks + head, mask=valid, other=0.0).to(tl.float32) * LOG2E
        total = total + 1.0
    slope = top
    if HAS_SLOPES:
        slope = tl.load(slopes + head, mask=valid, other=0.0) * LOG2E
    table = block_tables + seq.to(tl.int64) * max_blocks
    factor = scale * LOG2E
    position = first + token
    acc, top, total = fold_all(
        acc, top, total, rows_of_q, position, slope, begin, inner, causal, end, seen_from, table, kv_head, k_pages,
        v_pages, k_scales, v_scales, factor, softcap, window, KV_HEADS, HEAD_DIM, BLOCK_SIZE, BLOCK_N, BLOCK_D,
        HAS_WINDOW, CHUNKED, HAS_SOFTCAP, HAS_SLOPES, INT8, E4M3,
    )  # fmt: skip
    y = acc / total[:, None]
    tl.store(out + at * out_stride + column, y.to(out.dtype.element_ty), mask=mask)
