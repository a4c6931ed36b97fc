"""Collects the weights of target cuda, cuda/weights.bin: tensors in the forms that its kernels and products read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tensorwright.builder.emit.cuda.addresses import ALIGNMENT, WEIGHT, Address
from tensorwright.builder.emit.streamed_file import Chunks, Stored, StreamedFile
from tensorwright.plugins.gpu.launch import Tensor


class WeightsFile:
    """The tensors of the file, by number. They are read from the checkpoint when the file is written.

    `stream` and `constant` are what weights_source.Weights writes into; they return the tensors' numbers as texts.
    """

    def __init__(self) -> None:
        self._file = StreamedFile(lambda size: ALIGNMENT)
        self._stored: list[Stored] = []
        self._small: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    def stream(self, tensors: Sequence[tuple[str, str, tuple[int, ...]]], chunks: Chunks) -> list[str]:
        """Adds tensors (name, dtype, shape) that are made together."""
        first = len(self._stored)
        made = [Stored(str(first + i), dtype, shape) for i, (_, dtype, shape) in enumerate(tensors)]
        self._stored += made
        return self._file.add(made, chunks)

    def constant(self, array: np.ndarray, name: str) -> str:
        """Adds an array, once."""
        key = (str(array.dtype), array.shape, array.tobytes())
        if key not in self._small:

            def chunks() -> Iterator[tuple[int, np.ndarray]]:
                yield 0, array

            (self._small[key],) = self.stream([(name, str(array.dtype), array.shape)], chunks)
        return self._small[key]

    def tensor(self, number: str, name: str) -> Tensor:
        """Returns a tensor as a launch gets it. name: that of the operand."""
        stored = self._stored[int(number)]
        address: Any = Address(WEIGHT, int(number))
        return Tensor.dense(name, address, stored.shape, stored.dtype)

    @property
    def places(self) -> tuple[tuple[int, int], ...]:
        """The offset and the bytes of each tensor, by number."""
        return tuple(
            (offset, tensor.bytes)
            for stream in self._file.streams
            for offset, tensor in zip(stream.offsets, stream.tensors, strict=True)
        )

    @property
    def total_bytes(self) -> int:
        return self._file.total_bytes

    def write(self, sink: Any, progress: Callable[[int, int], None]) -> None:
        """Writes the file. `progress` gets (bytes done, bytes in all)."""
        self._file.write(sink, progress)
