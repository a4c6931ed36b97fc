"""Computes attention over latent rows: one row [c | r] of K for all heads at each position, and V is its first part c.

A tile is BLOCK_Q tokens of one sequence times HEADS of its heads, which all read the same rows: each row of the cache
is loaded once, multiplied as K, and multiplied again as V. The tiles of a step are those of prefill (gpu.py). The
context of a sequence with one token is cut into splits, as decode does it (gpu_decode.py), whose `combine` adds them
up: partials are acc [seqs, splits, heads, LATENT], then (top, total) [seqs, splits, heads, 2], float32.

`top`, `total` and `acc` are those of gpu_fold.py. c and r are padded to powers of two apart: 512 + 64 columns are no
more arithmetic than they must be.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tensorwright.plugins.paged_attention.gpu import find_sequence
from tensorwright.plugins.paged_attention.gpu_decode import plan_splits
from tensorwright.plugins.paged_attention.gpu_fold import LOG2E, LOWEST, cap, first_seen


@triton.jit
def fold_latents(
    acc, top, total, q_c, q_r, position, begin, end, table, pages, scale, softcap, window, HEAD_DIM: tl.constexpr,
    LATENT: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_L: tl.constexpr,
    BLOCK_R: tl.constexpr, HAS_WINDOW: tl.constexpr, CHUNKED: tl.constexpr, HAS_SOFTCAP: tl.constexpr,
):  # fmt: skip
    """Folds the positions of [begin, end) that each row sees: those up to its own, and not before its window."""
    at = tl.arange(0, BLOCK_L)
    rest = LATENT + tl.arange(0, BLOCK_R)
    for start in range(begin // BLOCK_N * BLOCK_N, end, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        seen = (n >= begin) & (n < end)
        page = tl.load(table + n // BLOCK_SIZE, mask=seen, other=0)
        rows = pages + (page.to(tl.int64) * BLOCK_SIZE + n % BLOCK_SIZE)[:, None] * HEAD_DIM
        # An unwritten slot may hold NaN, and 0 * NaN is NaN: what is not seen is 0.
        c = tl.load(rows + at[None, :], mask=seen[:, None] & (at < LATENT)[None, :], other=0.0)
        score = tl.dot(q_c, tl.trans(c), input_precision="ieee")
        if HEAD_DIM > LATENT:
            r = tl.load(rows + rest[None, :], mask=seen[:, None] & (rest < HEAD_DIM)[None, :], other=0.0)
            score = tl.dot(q_r, tl.trans(r), score, input_precision="ieee")
        score = cap(score, scale, softcap, HAS_SOFTCAP)
        visible = seen[None, :] & (n[None, :] <= position[:, None])
        if HAS_WINDOW:
            visible = visible & (n[None, :] >= first_seen(position, window, CHUNKED)[:, None])
        score = tl.where(visible, score, float("-inf"))
        higher = tl.maximum(top, tl.max(score, 1))
        p = tl.exp2(score - higher[:, None])
        shrink = tl.exp2(top - higher)
        total = total * shrink + tl.sum(p, 1)
        acc = tl.dot(p.to(c.dtype), c, acc * shrink[:, None], input_precision="ieee")
        top = higher
    return acc, top, total


@triton.jit
def attention_latent_kernel(
    q, k_pages, seq_starts, context_lens, block_tables, out, partials, seqs, splits, max_blocks, scale, softcap,
    window, HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, LATENT: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_L: tl.constexpr,
    BLOCK_R: tl.constexpr, SPLIT: tl.constexpr, MOST_SPLITS: tl.constexpr, HAS_WINDOW: tl.constexpr,
    CHUNKED: tl.constexpr, HAS_SOFTCAP: tl.constexpr,
):  # fmt: skip
    """The grid is: tiles, parts of the GROUP heads, splits.

    q [tokens, GROUP * HEAD_DIM]; k_pages [pages, BLOCK_SIZE, HEAD_DIM]; out [tokens, GROUP * LATENT].
    """
    BLOCK_Q: tl.constexpr = BLOCK_M // HEADS
    tile = tl.num_programs(0) - 1 - tl.program_id(0)  # tiles with the most positions run first
    split = tl.program_id(2)
    seq = find_sequence(seq_starts, seqs, tile, BLOCK_Q)
    start = tl.load(seq_starts + seq)
    count = tl.load(seq_starts + seq + 1) - start
    first_token = (tile - (start // BLOCK_Q + seq)) * BLOCK_Q
    if first_token >= count:
        return
    # A sequence of one token has splits, and another is one split. This tile sees [begin, end).
    context = tl.load(context_lens + seq)
    from_split, length, several = plan_splits(context, window, SPLIT, MOST_SPLITS, HAS_WINDOW, CHUNKED)
    shares = tl.where(count == 1, several, 1)
    if split >= shares:
        return
    first = context - count
    begin = tl.where(count == 1, from_split + split * length, 0)
    end = tl.minimum(tl.where(count == 1, begin + length, first + first_token + BLOCK_Q), context)
    if HAS_WINDOW:
        begin = tl.maximum(begin, first_seen(first + first_token, window, CHUNKED))

    row = tl.arange(0, BLOCK_M)
    token = first_token + row // HEADS
    head = tl.program_id(1) * HEADS + row % HEADS
    valid = (row < BLOCK_Q * HEADS) & (token < count) & (head < GROUP)
    at = tl.arange(0, BLOCK_L)
    rest = LATENT + tl.arange(0, BLOCK_R)
    place = (start + token).to(tl.int64) * GROUP + head
    rows_of_q = q + place[:, None] * HEAD_DIM
    inside = valid[:, None] & (at < LATENT)[None, :]
    q_c = tl.load(rows_of_q + at[None, :], mask=inside, other=0.0)
    q_r = tl.load(rows_of_q + rest[None, :], mask=valid[:, None] & (rest < HEAD_DIM)[None, :], other=0.0)
    acc = tl.zeros([BLOCK_M, BLOCK_L], tl.float32)
    top = tl.full([BLOCK_M], LOWEST, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    table = block_tables + seq.to(tl.int64) * max_blocks
    acc, top, total = fold_latents(
        acc, top, total, q_c, q_r, first + token, begin, end, table, k_pages, scale * LOG2E, softcap, window,
        HEAD_DIM, LATENT, BLOCK_SIZE, BLOCK_N, BLOCK_L, BLOCK_R, HAS_WINDOW, CHUNKED, HAS_SOFTCAP,
    )  # fmt: skip
    if shares == 1:
        y = acc / total[:, None]
        tl.store(out + place[:, None] * LATENT + at[None, :], y.to(out.dtype.element_ty), mask=inside)
    else:
        part = (seq.to(tl.int64) * splits + split) * GROUP + head
        tl.store(partials + part[:, None] * LATENT + at[None, :], acc, mask=inside)
        pair = partials + seqs.to(tl.int64) * splits * (GROUP * LATENT) + part * 2
        tl.store(pair, top, mask=valid)
        tl.store(pair + 1, total, mask=valid)
