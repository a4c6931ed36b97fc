"""Decides how much work the decodes of a step may be, and makes the launch that lists it (gpu_work_list.py).

    inputs   q [tokens, ...], seq_starts [seqs + 1], context_lens [seqs], block_tables [seqs, max_blocks]
    outputs  work [seqs, columns] int32: the items of decode, then where each sequence's begin
attrs: those of paged_attention. All layers that read one cache group, and have the same SHARED, share a list.

The grid of decode is a bound of the items, known from shapes. In units of UNIT positions, n sequences see T, each at
most m. A split has max(min(max(T / FEW, shortest), usual), T / MANY) units, rounded up, so that the items are at most

    n (m / shortest)      a sequence has no more splits than that, and at most `most_splits`
    n + MANY              each sequence has one split that is not full, and there are at most MANY full ones
    n + max(FEW, n m / usual)

FEW splits give every multiprocessor one program, and MANY give it all that it needs for an even load. n sequences of
FEW and more have programs enough, and so splits of `usual` units or more.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

from tensorwright.plugins.gpu.launch import (
    MULTIPROCESSORS,
    KernelSpec,
    Launch,
    Tensor,
    ceil_div,
    grid_of,
    make_launch,
    require_dense,
    require_shape,
)
from tensorwright.plugins.paged_attention.tiles import Attention, programs_of_an_item

MODULE = "tensorwright.plugins.paged_attention.gpu_work_list"
ITEM = 8
UNIT = 64
"""As in gpu_work_list.py, which this file may not import: it needs Triton. A test compares."""
USUAL = 8
"""Units of a split where sequences are many: 512 positions, the best of an H100 at 64 x 1024 (docs/gpu.md)."""
UNSPLIT = 4
"""Block tables of so many units and fewer are not split: an H100 takes about 0.6 us for a unit, and the sum of the
splits is a kernel of its own."""
PROGRAMS = 2048
"""The wanted number of programs where there is much work: about five rounds of what 132 multiprocessors hold."""
SHARED = ("heads", "kv_heads", "head_dim", "window", "chunked", "int8_kv", "block_size")
"""The attributes that decide a list, beside the step."""
AT_ONCE = 128
"""Sequences, or items, that a program of the list handles at a time."""


class Bounds(NamedTuple):
    """What shapes say of a list. items: the programs of decode for each part of a KV head's heads; splits: the most of
    a sequence; shortest: the least units of a split."""

    items: int
    splits: int
    shortest: int


def bounds(op: Attention, sm: int, seqs: int, max_blocks: int) -> Bounds:
    """Returns the bounds of a step of at least one sequence."""
    longest = max_blocks * op.block_size
    if op.window:
        longest = min(longest, op.window + UNIT - 1)
    units, few = ceil_div(longest, UNIT), _few(op, sm)
    short = seqs < few and units > UNSPLIT
    shortest = 1 if short else USUAL
    splits = min(ceil_div(units, shortest), op.most_splits)
    items = min(seqs * splits, seqs + _many(op, sm))
    if short:
        items = min(items, seqs + max(few, seqs * units // USUAL))
    return Bounds(items, splits, shortest)


def max_partials(op: Attention, sm: int, seqs: int, max_blocks: int) -> int:
    """Returns the most items of any step of at most so many sequences and blocks that has split ones; else 0."""
    counts = {seqs, max(min(seqs, _few(op, sm) - 1), 1)}
    found = [bounds(op, sm, count, max_blocks) for count in counts]
    return max(found.items if found.splits > 1 else 0 for found in found)


def columns(op: Attention) -> int:
    """Returns the integers of a list for each sequence."""
    return ITEM * op.most_splits + 2


def is_needed(tokens: int, seqs: int) -> bool:
    """Whether shapes allow a sequence of one token, as every sequence has one or more."""
    return tokens == 1 or seqs > 1


def kernels(attrs: Mapping[str, Any], dtypes: Mapping[str, str], sm: int) -> tuple[KernelSpec, ...]:
    """Returns the kernel. Only q's type of `dtypes` is needed."""
    return (_spec(Attention.of(attrs, dtypes["q"]), sm),)


def launches(
    attrs: Mapping[str, Any],
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    workspace: Tensor | None,
    sm: int,
) -> list[Launch]:
    """Makes the launch; none for a step that has no decode."""
    q, work = inputs["q"], outputs["work"]
    op = Attention.of(attrs, q.dtype)
    tokens, (seqs, max_blocks) = q.shape[0], inputs["block_tables"].shape
    require_shape(inputs["seq_starts"], (seqs + 1,), "int32")
    require_shape(inputs["context_lens"], (seqs,), "int32")
    require_shape(work, (seqs, columns(op)), "int32")
    require_dense(inputs["seq_starts"], inputs["context_lens"], work)
    if tokens == 0 or seqs == 0 or not is_needed(tokens, seqs):
        return []
    bound = bounds(op, sm, seqs, max_blocks)
    values = {
        "seq_starts": inputs["seq_starts"], "context_lens": inputs["context_lens"], "work": work, "seqs": seqs,
        "items": bound.items, "shortest": bound.shortest, "window": op.window,
    }  # fmt: skip
    return [make_launch(_spec(op, sm), grid_of(seqs), values)]


def workspace_bytes(attrs: Mapping[str, Any], shapes_max: Mapping[str, tuple[int, ...]]) -> int:
    return 0


def _few(op: Attention, sm: int) -> int:
    """Returns how many splits give every multiprocessor a program; over an int8 cache two, which have half of the bytes
    to load (docs/gpu.md has both, timed)."""
    programs = MULTIPROCESSORS.get(sm, MULTIPROCESSORS[80]) * (2 if op.int8_kv else 1)
    return max(programs // programs_of_an_item(op, sm), 1)


def _many(op: Attention, sm: int) -> int:
    return max(PROGRAMS // programs_of_an_item(op, sm), 1)


@functools.cache
def _spec(op: Attention, sm: int) -> KernelSpec:
    pointers = ("seq_starts", "context_lens", "work")
    integers = ("seqs", "items", "shortest", "window")
    constants = {
        "FEW": _few(op, sm), "MANY": _many(op, sm), "USUAL": USUAL, "MOST_SPLITS": op.most_splits,
        "HAS_WINDOW": op.window > 0, "CHUNKED": op.chunked, "AT_ONCE": AT_ONCE,
    }  # fmt: skip
    return KernelSpec(
        "attention_list_kernel",
        MODULE,
        (*((name, "*i32") for name in pointers), *((name, "i32") for name in integers)),
        tuple(constants.items()),
        num_warps=4,
    )
