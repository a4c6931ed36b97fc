"""Cuts the blocks of a prefix into chunks: consecutive blocks that are read, sent and written at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tensorwright.runtime.transfer.frames import MAX_PIECES

CHUNK_BYTES = 1 << 20
"""The bytes of a chunk, unless one block is larger. An engine copies a chunk between two steps in a fraction of a
millisecond, so it is also what a running request may be held up by at once."""


def chunk_bytes(block_bytes: Sequence[int]) -> int:
    """Returns the most bytes of a chunk for blocks of these sizes."""
    return max(CHUNK_BYTES, max(block_bytes, default=0))


def cut(sizes: Sequence[int], most: int) -> Iterator[slice]:
    """Yields the places of each chunk's blocks. sizes: the bytes of each block, none above `most`."""
    start = total = 0
    for index, size in enumerate(sizes):
        if index > start and (total + size > most or index - start >= MAX_PIECES):
            yield slice(start, index)
            start, total = index, 0
        total += size
    if start < len(sizes):
        yield slice(start, len(sizes))
