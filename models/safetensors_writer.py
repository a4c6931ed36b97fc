"""Writes one .safetensors file, a tensor after the other, so that no more than a part of one is in memory."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import prod
from typing import Protocol

import numpy as np

from tensorwright.engine_format.dtypes import ITEM_BYTES
from tensorwright.models.checkpoint import Checkpoint
from tensorwright.models.safetensors_file import stored_name

_CHUNK_BYTES = 8 << 20


class Sink(Protocol):
    """A file that tensors are written to."""

    def write(self, data: bytes, /) -> int: ...


def header(entries: Mapping[str, tuple[str, tuple[int, ...]]]) -> tuple[bytes, int]:
    """Returns the file's beginning, padded to 8 bytes, and the number of bytes of all tensors.

    entries: the element type and the shape of each tensor, in the order in which they follow.
    """
    table, offset = {}, 0
    for name, (dtype, shape) in entries.items():
        end = offset + prod(shape) * ITEM_BYTES[dtype]
        table[name] = {"dtype": stored_name(dtype), "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text, offset


def write_tensors(
    sink: Sink, tensors: Iterable[Iterable[np.ndarray]], total: int, advance: Callable[[int, int], None]
) -> None:
    """Writes the tensors behind the header, each in parts. `advance` gets (bytes done, bytes in total)."""
    done = 0
    for parts in tensors:
        for data in parts:
            done += sink.write(np.ascontiguousarray(data).tobytes())
            advance(done, total)


def parts_of(checkpoint: Checkpoint, name: str) -> Iterator[np.ndarray]:
    """Yields a stored tensor's elements, some rows at a time."""
    if not checkpoint.shape(name):
        yield checkpoint.read(name).data
        return
    first, *others = checkpoint.shape(name)
    row_bytes = max(1, prod(others) * ITEM_BYTES[checkpoint.dtype(name)])
    step = max(1, _CHUNK_BYTES // row_bytes)
    for start in range(0, first, step):
        ranges = ((start, min(first, start + step)), *((0, size) for size in others))
        yield checkpoint.read_part(name, ranges).data
