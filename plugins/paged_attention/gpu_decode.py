"""Computes decode: attention of every sequence with one token, its positions split among many programs.

A split is a range of positions. `decode` folds one split for HEADS heads of one KV head, which share each page, and
writes (top, total) and acc to its place in the workspace. `combine` adds the splits in the order of positions. A
sequence of one split needs no workspace: `decode` writes its result.

Which splits there are a list says (gpu_work_list.py), or else the sequence's own context alone: then a split is
`length` positions from a multiple of `length`, and a token's bits do not depend on other sequences in the step.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tensorwright.plugins.paged_attention.gpu_fold import LOG2E, LOWEST, fold_all
from tensorwright.plugins.paged_attention.gpu_work_list import ITEM, visible_from


@triton.jit
def plan_splits(context, window, SPLIT: tl.constexpr, MOST_SPLITS: tl.constexpr, HAS_WINDOW: tl.constexpr):
    """Returns (start of the first split, positions of a split, splits): at most MOST_SPLITS, of a multiple of SPLIT."""
    visible = context
    if HAS_WINDOW:
        visible = tl.minimum(context, window)
    # A window may start anywhere in the first split, so the window may touch one more split.
    length = SPLIT * tl.cdiv(visible, SPLIT * (MOST_SPLITS - 1 if HAS_WINDOW else MOST_SPLITS))
    first = (context - visible) // length * length
    return first, length, tl.cdiv(context - first, length)


@triton.jit
def attention_decode_kernel(
    q, k_pages, v_pages, k_scales, v_scales, seq_starts, context_lens, block_tables, sinks, work, out, partials,
    splits, max_blocks, q_stride, out_stride, scale, softcap, window, HEADS: tl.constexpr, GROUP: tl.constexpr,
    KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, SPLIT: tl.constexpr, MOST_SPLITS: tl.constexpr,
    HAS_WINDOW: tl.constexpr, HAS_SOFTCAP: tl.constexpr, HAS_SINKS: tl.constexpr, INT8: tl.constexpr,
):  # fmt: skip
    """The grid is: items of the list, KV heads * parts of a group of HEADS heads; without a list: sequences, the same,
    splits.

    partials: acc [places, heads, HEAD_DIM], then (top, total) [places, heads, 2], float32. A place is an item of the
    list, or [seqs, splits].
    """
    PARTS: tl.constexpr = (GROUP + HEADS - 1) // HEADS
    if work is not None:
        place = tl.program_id(0)
        places = tl.num_programs(0)
        item = work + place * ITEM
        token = tl.load(item)
        seq = tl.load(item + 1)
        begin = tl.load(item + 2)
        end = tl.load(item + 3)
        context = tl.load(item + 4)
    else:
        seq = tl.program_id(0)
        place = seq * splits + tl.program_id(2)
        places = tl.num_programs(0) * splits
        token = tl.load(seq_starts + seq)
        context = tl.load(context_lens + seq)
        first, length, count = plan_splits(context, window, SPLIT, MOST_SPLITS, HAS_WINDOW)
        begin = first + tl.program_id(2) * length
        end = tl.minimum(begin + length, context)
        end = tl.where(tl.load(seq_starts + seq + 1) - token == 1, end, begin)
    if end <= begin:
        return
    is_first = begin <= visible_from(context, window, HAS_WINDOW)
    kv_head = tl.program_id(1) // PARTS
    row = tl.arange(0, BLOCK_M)
    in_group = tl.program_id(1) % PARTS * HEADS + row
    valid = (row < HEADS) & (in_group < GROUP)
    head = kv_head * GROUP + in_group
    d = tl.arange(0, BLOCK_D)
    mask = valid[:, None] & (d < HEAD_DIM)[None, :]
    column = head[:, None] * HEAD_DIM + d[None, :]
    rows_of_q = tl.load(q + token.to(tl.int64) * q_stride + column, mask=mask, other=0)

    # This split sees [begin, end). Only its last tile, and with a window its first, need a mask.
    seen_from = begin
    inner = begin
    if HAS_WINDOW:
        seen_from = tl.maximum(begin, context - window)
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
    table = block_tables + seq.to(tl.int64) * max_blocks
    factor = scale * LOG2E
    position = tl.full([BLOCK_M], 0, tl.int32) + (context - 1)
    acc, top, total = fold_all(
        acc, top, total, rows_of_q, position, begin, inner, full, end, seen_from, table, kv_head, k_pages, v_pages,
        k_scales, v_scales, factor, softcap, window, KV_HEADS, HEAD_DIM, BLOCK_SIZE, BLOCK_N, BLOCK_D, HAS_WINDOW,
        HAS_SOFTCAP, INT8,
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
def rounded_product(x, y):
    """Returns x * y, rounded. The compiler cannot put this product and a sum that follows into one rounding.

    Two lanes that add up two products exchange them. If each lane rounded only the other's product, the lanes would
    get two results, and write both to the same place in shared memory.
    """
    return tl.fma(x, y, tl.zeros_like(x))


@triton.jit
def attention_combine_kernel(
    partials, seq_starts, context_lens, work, out, splits, items, out_stride, window, KV_HEADS: tl.constexpr, GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, SPLIT: tl.constexpr, MOST_SPLITS: tl.constexpr,
    HAS_WINDOW: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """The grid is: sequences, heads. The kernel loads AT_ONCE splits at a time and adds them in order."""
    seq = tl.program_id(0)
    head = tl.program_id(1)
    token = tl.load(seq_starts + seq)
    if work is not None:
        place = tl.load(work + items * ITEM + seq * 2)
        count = tl.load(work + items * ITEM + seq * 2 + 1)
        places = items
    else:
        context = tl.load(context_lens + seq)
        _, _, count = plan_splits(context, window, SPLIT, MOST_SPLITS, HAS_WINDOW)
        count = tl.where(tl.load(seq_starts + seq + 1) - token == 1, count, 0)
        place = seq * splits
        places = tl.num_programs(0) * splits
    if count <= 1:
        return
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
