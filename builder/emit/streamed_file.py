"""Writes tensors into one file, a few rows at a time: their places follow from types and shapes alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from tensorwright.engine_format.dtypes import BITS

Chunks = Callable[[], Iterator[tuple[int, np.ndarray]]]
"""Yields (the index of the tensor in the stream, its next bytes); the tensors come one after the other."""


def stored_bytes(dtype: str, shape: Sequence[int]) -> int:
    """Returns the bytes that a tensor takes. Two int4 elements share a byte."""
    return -(-prod(shape) * BITS[dtype] // 8)


@dataclass(frozen=True)
class Stored:
    """A tensor in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return stored_bytes(self.dtype, self.shape)


@dataclass
class Stream:
    """Tensors that are made together, and their places in the file."""

    tensors: tuple[Stored, ...]
    chunks: Chunks
    offsets: list[int] = field(default_factory=list)


class StreamedFile:
    """The tensors of one file, in the order in which they were added. alignment: of a tensor of so many bytes."""

    def __init__(self, alignment: Callable[[int], int]):
        self.alignment = alignment
        self.streams: list[Stream] = []
        self.total_bytes = 0

    def add(self, tensors: Sequence[Stored], chunks: Chunks) -> list[str]:
        """Adds tensors that are made together. Returns their names."""
        stream = Stream(tuple(tensors), chunks)
        for tensor in stream.tensors:
            alignment = self.alignment(tensor.bytes)
            offset = -(-self.total_bytes // alignment) * alignment
            stream.offsets.append(offset)
            self.total_bytes = offset + tensor.bytes
        self.streams.append(stream)
        return [tensor.name for tensor in stream.tensors]

    def write(self, sink: Any, progress: Callable[[int, int], None] = lambda done, total: None) -> None:
        """Writes the file in order. `progress` gets (bytes done, bytes in all)."""
        position = 0
        for stream in self.streams:
            current = -1
            for index, chunk in stream.chunks():
                if index != current:
                    current = index
                    sink.write(bytes(stream.offsets[index] - position))
                    position = stream.offsets[index]
                data = np.ascontiguousarray(chunk).reshape(-1).view(np.uint8)
                sink.write(data.data)
                position += data.nbytes
                progress(position, self.total_bytes)
            end = stream.offsets[-1] + stream.tensors[-1].bytes
            if position != end:
                raise AssertionError(f"{stream.tensors[-1].name}: wrote up to byte {position}, planned {end}")
