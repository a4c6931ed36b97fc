"""Lists the work of a step's decodes: which program of decode takes which positions of which sequence.

A step's sequences of one token are cut into splits of positions, as many as a GPU needs and no more. How long they are
is decided here, on the GPU, since a host that replays a graph does not know the contexts. The same step gives the same
list, whatever the order in which programs run.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tensorwright.plugins.paged_attention.gpu_fold import first_seen

ITEM = tl.constexpr(8)
"""The integers of an item: token, sequence, begin and end of its positions, the sequence's context; the rest unused."""
UNIT = tl.constexpr(64)
"""Splits begin at multiples of this many positions, and tiles of positions divide it."""


@triton.jit
def visible_from(context, window, HAS_WINDOW: tl.constexpr, CHUNKED: tl.constexpr):
    """Returns the first position that the last one of a context sees."""
    first = context * 0
    if HAS_WINDOW:
        first = tl.maximum(first_seen(context - 1, window, CHUNKED), 0)
    return first


@triton.jit
def units_of(seq_starts, context_lens, seq, seqs, window, HAS_WINDOW: tl.constexpr, CHUNKED: tl.constexpr):
    """Returns how many units of positions each sequence `seq` sees, 0 if it does not have just one token."""
    there = seq < seqs
    tokens = tl.load(seq_starts + seq + 1, mask=there, other=0) - tl.load(seq_starts + seq, mask=there, other=0)
    context = tl.load(context_lens + seq, mask=there, other=0)
    seen = tl.cdiv(context, UNIT) - visible_from(context, window, HAS_WINDOW, CHUNKED) // UNIT
    return tl.where(tokens == 1, seen, 0)


@triton.jit
def splits_of(units, length, MOST_SPLITS: tl.constexpr):
    """Returns (splits, units of each of them) of a sequence of so many units: at most MOST_SPLITS."""
    own = tl.maximum(length, tl.cdiv(units, MOST_SPLITS))
    return tl.cdiv(units, own), own


@triton.jit
def attention_list_kernel(
    seq_starts, context_lens, work, seqs, items, shortest, window, FEW: tl.constexpr, MANY: tl.constexpr,
    USUAL: tl.constexpr, MOST_SPLITS: tl.constexpr, HAS_WINDOW: tl.constexpr, CHUNKED: tl.constexpr,
    AT_ONCE: tl.constexpr,
):  # fmt: skip
    """Program s of `seqs` writes the items of sequence s, and the last one also those of no work, up to `items`.

    work [items * ITEM + seqs * 2]: the items, then (first item, number of items) of each sequence. An item without work
    has zeros. shortest: the least units of a split. work_list.py says what FEW, MANY and USUAL are.
    """
    own = tl.program_id(0)
    lane = tl.arange(0, AT_ONCE)
    total = 0
    for start in range(0, seqs, AT_ONCE):
        total += tl.sum(units_of(seq_starts, context_lens, start + lane, seqs, window, HAS_WINDOW, CHUNKED), 0)
    length = tl.minimum(tl.maximum(tl.cdiv(total, FEW), shortest), USUAL)
    length = tl.maximum(length, tl.cdiv(total, MANY))
    before = 0
    for start in range(0, seqs, AT_ONCE):
        units = units_of(seq_starts, context_lens, start + lane, seqs, window, HAS_WINDOW, CHUNKED)
        splits, _ = splits_of(units, length, MOST_SPLITS)
        before += tl.sum(tl.where(start + lane < own, splits, 0), 0)
    units = units_of(seq_starts, context_lens, own, seqs, window, HAS_WINDOW, CHUNKED)
    count, units_of_a_split = splits_of(units, length, MOST_SPLITS)
    tl.store(work + items * ITEM + own * 2, before)
    tl.store(work + items * ITEM + own * 2 + 1, count)
    token = tl.load(seq_starts + own)
    context = tl.load(context_lens + own)
    first = visible_from(context, window, HAS_WINDOW, CHUNKED) // UNIT * UNIT
    step = units_of_a_split * UNIT
    last = before + count
    if own == seqs - 1:
        last = items
    for start in range(before, last, AT_ONCE):
        item = start + lane
        inside = item < last
        busy = item < before + count
        begin = first + (item - before) * step
        at = work + item * ITEM
        tl.store(at, tl.where(busy, token, 0), mask=inside)
        tl.store(at + 1, tl.where(busy, own, 0), mask=inside)
        tl.store(at + 2, tl.where(busy, begin, 0), mask=inside)
        tl.store(at + 3, tl.where(busy, tl.minimum(begin + step, context), 0), mask=inside)
        tl.store(at + 4, tl.where(busy, context, 0), mask=inside)
