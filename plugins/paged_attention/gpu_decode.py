"""Computes decode: attention of every sequence with one token, its positions split among many programs.

A split is a range of positions. `decode` folds one split for HEADS heads of one KV head, which share each page, and
writes (top, total) and acc to the split's place in the workspace. `combine` adds the splits in the order of positions.
A sequence of one split needs no workspace: `decode` writes its result.

The listed kernels read from a list which splits there are (gpu_work_list.py). The others derive it from the sequence's
own context alone: a split is `length` positions from a multiple of `length`, and a token's bits do not depend on other
sequences in the step.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tensorwright.plugins.paged_attention.gpu_fold import LOG2E, LOWEST, first_seen, fold_all
from tensorwright.plugins.paged_attention.gpu_work_list import ITEM, visible_from


@triton.jit
def plan_splits(
    context, window, SPLIT: tl.constexpr, MOST_SPLITS: tl.constexpr, HAS_WINDOW: tl.constexpr, CHUNKED: tl.constexpr
):
    """Returns (start of the first split, positions of a split, splits): at most MOST_SPLITS, of a multiple of SPLIT."""
    visible = context - visible_from(context, window, HAS_WINDOW, CHUNKED)
    # A window may start anywhere in the first split, so the window may touch one more split.
    length = SPLIT * tl.cdiv(visible, SPLIT * (MOST_SPLITS - 1 if HAS_WINDOW else MOST_SPLITS))
    first = (context - visible) // length * length
    return first, length, tl.cdiv(context - first, length)


@triton.jit
def fold_split(
    seq, token, context, begin, end, place, places, q, k_pages, v_pages, k_scales, v_scales, block_tables, sinks,
    slopes, out, partials, max_blocks, q_stride, out_stride, scale, softcap, window, HEADS: tl.constexpr,
    GROUP: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, HAS_WINDOW: tl.constexpr,
    CHUNKED: tl.constexpr, HAS_SOFTCAP: tl.constexpr, HAS_SINKS: tl.constexpr, HAS_SLOPES: tl.constexpr,
    INT8: tl.constexpr, E4M3: tl.constexpr,
):  # fmt: skip
    """Folds positions [begin, end) of a sequence, for the KV head and the part of its heads of program_id(1).

    begin: a multiple of BLOCK_N. partials: acc [places, heads, HEAD_DIM], then (top, total) [places, heads, 2],
    float32.
    """
    PARTS: tl.constexpr = (GROUP + HEADS - 1) // HEADS
    kv_head = tl.program_id(1) // PARTS
    row = tl.arange(0, BLOCK_M)
    in_group = tl.program_id(1) % PARTS * HEADS + row
    valid = (row < HEADS) & (in_group < GROUP)
    head = kv_head * GROUP + in_group
    d = tl.arange(0, BLOCK_D)
    mask = valid[:, None] & (d < HEAD_DIM)[None, :]
    column = head[:, None] * HEAD_DIM + d[None, :]
    rows_of_q = tl.load(q + token.to(tl.int64) * q_stride + column, mask=mask, other=0)

    # Only the last tile, and with a window the first, need a mask.
    is_first = begin <= visible_from(context, window, HAS_WINDOW, CHUNKED)
    seen_from = begin
    inner = begin
    if HAS_WINDOW:
        seen_from = tl.maximum(begin, first_seen(context - 1, window, CHUNKED))
        begin = seen_from // BLOCK_N * BLOCK_N
        inner = tl.minimum(tl.cdiv(seen_from, BLOCK_N) * BLOCK_N, end)
    full = tl.maximum(end // BLOCK_N * BLOCK_N, inner)

    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    top = tl.full([BLOCK_M], LOWEST, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    if HAS_SINKS:  # the first split adds the sink
        sink = tl.load(sinks + head, mask=valid, other=0.0).to(tl.float32) * LOG2E
        top = tl.where(is_first, sink, top)
        total = tl.where(is_first, 1.0, total)
    slope = top
    if HAS_SLOPES:
        slope = tl.load(slopes + head, mask=valid, other=0.0) * LOG2E
    table = block_tables + seq.to(tl.int64) * max_blocks
    factor = scale * LOG2E
    position = tl.full([BLOCK_M], 0, tl.int32) + (context - 1)
    acc, top, total = fold_all(
        acc, top, total, rows_of_q, position, slope, begin, inner, full, end, seen_from, table, kv_head, k_pages,
        v_pages, k_scales, v_scales, factor, softcap, window, KV_HEADS, HEAD_DIM, BLOCK_SIZE, BLOCK_N, BLOCK_D,
        HAS_WINDOW, CHUNKED, HAS_SOFTCAP, HAS_SLOPES, INT8, E4M3,
    )  # fmt: skip
    if is_first & (end == context):
        y = acc / total[:, None]
        tl.store(out + token.to(tl.int64) * out_stride + column, y.to(out.dtype.element_ty), mask=mask)
    else:
        heads = KV_HEADS * GROUP
        at = place.to(tl.int64) * heads
        tl.store(partials + at * HEAD_DIM + column, acc, mask=mask)
        pair = partials + places.to(tl.int64) * heads * HEAD_DIM + (at + head) * 2
        tl.store(pair, top, mask=valid)
        tl.store(pair + 1, total, mask=valid)


@triton.jit
def attention_decode_kernel(
    q, k_pages, v_pages, k_scales, v_scales, seq_starts, context_lens, block_tables, sinks, slopes, out, partials,
    splits, max_blocks, q_stride, out_stride, scale, softcap, window, HEADS: tl.constexpr, GROUP: tl.constexpr,
    KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, SPLIT: tl.constexpr, MOST_SPLITS: tl.constexpr,
    HAS_WINDOW: tl.constexpr, CHUNKED: tl.constexpr, HAS_SOFTCAP: tl.constexpr, HAS_SINKS: tl.constexpr,
    HAS_SLOPES: tl.constexpr, INT8: tl.constexpr,
    E4M3: tl.constexpr,
):  # fmt: skip
    """The grid is: sequences, KV heads * parts of a group of HEADS heads, splits. Places are [seqs, splits]."""
    seq = tl.program_id(0)
    split = tl.program_id(2)
    token = tl.load(seq_starts + seq)
    if tl.load(seq_starts + seq + 1) - token != 1:
        return
    context = tl.load(context_lens + seq)
    first, length, count = plan_splits(context, window, SPLIT, MOST_SPLITS, HAS_WINDOW, CHUNKED)
    if split >= count:
        return
    begin = first + split * length
    end = tl.minimum(begin + length, context)
    fold_split(
        seq, token, context, begin, end, seq * splits + split, tl.num_programs(0) * splits, q, k_pages, v_pages,
        k_scales, v_scales, block_tables, sinks, slopes, out, partials, max_blocks, q_stride, out_stride, scale,
        softcap, window, HEADS, GROUP, KV_HEADS, HEAD_DIM, BLOCK_SIZE, BLOCK_M, BLOCK_N, BLOCK_D, HAS_WINDOW, CHUNKED,
        HAS_SOFTCAP, HAS_SINKS, HAS_SLOPES, INT8, E4M3,
    )  # fmt: skip


@triton.jit
def attention_listed_decode_kernel(
    q, k_pages, v_pages, k_scales, v_scales, block_tables, sinks, slopes, work, out, partials, max_blocks, q_stride,
    out_stride, scale, softcap, window, HEADS: tl.constexpr, GROUP: tl.constexpr, KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr, HAS_WINDOW: tl.constexpr, CHUNKED: tl.constexpr, HAS_SOFTCAP: tl.constexpr,
    HAS_SINKS: tl.constexpr, HAS_SLOPES: tl.constexpr, INT8: tl.constexpr,
    E4M3: tl.constexpr,
):  # fmt: skip
    """The grid is: items of the list, KV heads * parts of a group of HEADS heads. Places are items."""
    item = work + tl.program_id(0) * ITEM
    token = tl.load(item)
    seq = tl.load(item + 1)
    begin = tl.load(item + 2)
    end = tl.load(item + 3)
    context = tl.load(item + 4)
    if end == begin:
        return
    fold_split(
        seq, token, context, begin, end, tl.program_id(0), tl.num_programs(0), q, k_pages, v_pages, k_scales, v_scales,
        block_tables, sinks, slopes, out, partials, max_blocks, q_stride, out_stride, scale, softcap, window, HEADS,
        GROUP, KV_HEADS, HEAD_DIM, BLOCK_SIZE, BLOCK_M, BLOCK_N, BLOCK_D, HAS_WINDOW, CHUNKED, HAS_SOFTCAP, HAS_SINKS,
        HAS_SLOPES, INT8, E4M3,
    )  # fmt: skip


@triton.jit
def rounded_product(x, y):
    """Returns x * y, rounded. The compiler cannot put this product and a sum that follows into one rounding.

    Two lanes that add up two products exchange them. If each lane rounded only the other's product, the lanes would
    get two results, and write both to the same place in shared memory.
    """
    return tl.fma(x, y, tl.zeros_like(x))


@triton.jit
def add_splits(
    partials, place, places, count, token, head, out, out_stride, KV_HEADS: tl.constexpr, GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, MOST_SPLITS: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """Adds the `count` splits of a sequence from `place` on, in order, AT_ONCE of them loaded at a time."""
    heads = KV_HEADS * GROUP
    every = tl.arange(0, MOST_SPLITS)
    d = tl.arange(0, BLOCK_D)
    at = place.to(tl.int64) * heads + head
    pairs = partials + places.to(tl.int64) * heads * HEAD_DIM + at * 2
    highest = tl.max(tl.load(pairs + every * heads * 2, mask=every < count, other=LOWEST), 0)
    acc = tl.zeros([BLOCK_D], tl.float32)
    total = 0.0
    for start in range(0, count, AT_ONCE):
        split = start + tl.arange(0, AT_ONCE)
        there = split < count
        top = tl.load(pairs + split * heads * 2, mask=there, other=LOWEST)
        weight = tl.where(there, tl.exp2(top - highest), 0.0)
        total += tl.sum(rounded_product(weight, tl.load(pairs + split * heads * 2 + 1, mask=there, other=0.0)), 0)
        rows = partials + (at + split * heads)[:, None] * HEAD_DIM + d[None, :]
        part = tl.load(rows, mask=there[:, None] & (d < HEAD_DIM)[None, :], other=0.0)
        acc += tl.sum(rounded_product(part, tl.broadcast_to(weight[:, None], (AT_ONCE, BLOCK_D))), 0)
    y = (acc / total).to(out.dtype.element_ty)
    tl.store(out + token.to(tl.int64) * out_stride + head * HEAD_DIM + d, y, mask=d < HEAD_DIM)


@triton.jit
def attention_combine_kernel(
    partials, seq_starts, context_lens, out, splits, out_stride, window, KV_HEADS: tl.constexpr, GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, SPLIT: tl.constexpr, MOST_SPLITS: tl.constexpr,
    HAS_WINDOW: tl.constexpr, CHUNKED: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """The grid is: sequences, heads."""
    seq = tl.program_id(0)
    token = tl.load(seq_starts + seq)
    if tl.load(seq_starts + seq + 1) - token != 1:
        return
    context = tl.load(context_lens + seq)
    _, _, count = plan_splits(context, window, SPLIT, MOST_SPLITS, HAS_WINDOW, CHUNKED)
    if count == 1:
        return
    add_splits(
        partials, seq * splits, tl.num_programs(0) * splits, count, token, tl.program_id(1), out, out_stride, KV_HEADS,
        GROUP, HEAD_DIM, BLOCK_D, MOST_SPLITS, AT_ONCE,
    )  # fmt: skip


@triton.jit
def attention_listed_combine_kernel(
    partials, seq_starts, work, out, items, out_stride, KV_HEADS: tl.constexpr, GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, MOST_SPLITS: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """The grid is: sequences, heads. items: those of the list, with which decode was started."""
    seq = tl.program_id(0)
    place = tl.load(work + items * ITEM + seq * 2)
    count = tl.load(work + items * ITEM + seq * 2 + 1)
    if count <= 1:
        return
    add_splits(
        partials, place, items, count, tl.load(seq_starts + seq), tl.program_id(1), out, out_stride, KV_HEADS, GROUP,
        HEAD_DIM, BLOCK_D, MOST_SPLITS, AT_ONCE,
    )  # fmt: skip
