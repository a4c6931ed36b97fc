"""Says which columns, rows and heads each rank has: contiguous, in the order of ranks, and as even as can be."""

from __future__ import annotations

from collections.abc import Sequence

Range = tuple[int, int]
Ranges = tuple[Range, ...]
"""Ascending ranges of columns, without overlap."""

GRAINS = (128, 64, 32, 16, 1)
"""How many neighbours stay together, the first that gives every rank some: the groups of formats, the lanes of kernels,
and single columns."""


def cut(total: int, ranks: int, rank: int, grain: int = 1) -> Range:
    """Returns the part of [0, total) that a rank has, in whole grains but for the last one."""
    grains = -(-total // grain)
    begin, end = (grains * i // ranks * grain for i in (rank, rank + 1))
    return min(begin, total), min(end, total)


def cut_columns(total: int, ranks: int, rank: int) -> Range | None:
    """Returns the columns that a rank has; None if there are fewer than ranks."""
    grain = next((grain for grain in GRAINS if -(-total // grain) >= ranks), None)
    return None if grain is None else cut(total, ranks, rank, grain)


def cut_heads(heads: int, kv_heads: int, ranks: int, rank: int) -> tuple[Range, Range] | None:
    """Returns the heads of q and those of K and V that a rank has; None if there are fewer heads than ranks.

    A rank has whole groups of heads, each with its head of K and V; if there are more ranks than groups, several ranks
    have the same head of K and V, and share its group.
    """
    if heads < ranks:
        return None
    group = heads // kv_heads
    if ranks <= kv_heads:
        begin, end = cut(kv_heads, ranks, rank)
        return (begin * group, end * group), (begin, end)
    owner = next(g for g in range(kv_heads) if cut(ranks, kv_heads, g)[0] <= rank < cut(ranks, kv_heads, g)[1])
    first, last = cut(ranks, kv_heads, owner)
    if last - first > group:
        return None
    begin, end = cut(group, last - first, rank - first)
    return (owner * group + begin, owner * group + end), (owner, owner + 1)


def width(ranges: Sequence[Range]) -> int:
    return sum(end - begin for begin, end in ranges)


def joined(ranges: Sequence[Range]) -> Ranges:
    """Returns the ranges with neighbours joined and empty ones left out. They must ascend."""
    found: list[Range] = []
    for begin, end in ranges:
        if begin == end:
            continue
        if found and found[-1][1] == begin:
            found[-1] = (found[-1][0], end)
        else:
            found.append((begin, end))
    return tuple(found)


def within(ranges: Sequence[Range], begin: int, end: int) -> Ranges:
    """Returns the part of ranges that lies in [begin, end), counted from there."""
    return joined([(max(a, begin) - begin, min(b, end) - begin) for a, b in ranges if max(a, begin) < min(b, end)])


def shifted(ranges: Sequence[Range], by: int) -> Ranges:
    return tuple((a + by, b + by) for a, b in ranges)
