"""Gives activations their memory: each buffer gets a slot, and buffers that are never needed at once share one.

A buffer is written by one instruction and needed until the last one that names it. A slot has rows for tokens, for rows
of logits or for sequences, as all of its buffers have. Instructions run in order, and a kernel of an instruction may
write results before all of its operands are read; so a slot is free only after the instruction that needs its buffer
last.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Buffer:
    """One activation. rows: what it has a row for, such as "tokens"; row_bytes: the bytes of a row."""

    rows: str
    row_bytes: int


@dataclass
class Slot:
    """A place for buffers, one after the other."""

    rows: str
    row_bytes: int


def assign_slots(
    buffers: Sequence[Buffer], uses: Sequence[Collection[int]], kept: Sequence[int]
) -> tuple[tuple[Slot, ...], tuple[int, ...]]:
    """Returns the slots, and the slot of each buffer.

    uses: for each instruction, the buffers that it reads or writes. kept: the buffers of logits, each of which has a
    slot of its own.
    """
    last = {buffer: at for at, named in enumerate(uses) for buffer in named}
    slots = [Slot(buffers[number].rows, buffers[number].row_bytes) for number in kept]
    place = {number: at for at, number in enumerate(kept)}
    free: list[int] = []
    for at, named in enumerate(uses):
        for buffer in sorted(named):
            if buffer not in place:
                place[buffer] = _take(slots, free, buffers[buffer])
        free += [place[buffer] for buffer in sorted(named) if last[buffer] == at and buffer not in kept]
    return tuple(slots), tuple(place[number] for number in range(len(buffers)))


def _take(slots: list[Slot], free: list[int], buffer: Buffer) -> int:
    """Returns a free slot: the smallest that is large enough, else the largest, which grows, else a new one."""
    fitting = [number for number in free if slots[number].rows == buffer.rows]
    if not fitting:
        slots.append(Slot(buffer.rows, buffer.row_bytes))
        return len(slots) - 1
    large = [number for number in fitting if slots[number].row_bytes >= buffer.row_bytes]
    chosen = min(large or fitting, key=lambda number: slots[number].row_bytes if large else -slots[number].row_bytes)
    slots[chosen].row_bytes = max(slots[chosen].row_bytes, buffer.row_bytes)
    free.remove(chosen)
    return chosen
