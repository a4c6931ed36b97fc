"""Copies a step's metadata to the device, packed into one copy, and the step's rows of logits back.

The metadata lies packed in page-locked memory, and in the same order on the device. Every array begins at an address
that the library accepts. So one copy is enough, and steps of the same sizes have the same addresses.
"""

from __future__ import annotations

from contextlib import ExitStack
from math import prod
from typing import Any

import numpy as np

from tensorwright.engine_format.tensorrt_manifest import IoTensor, Manifest, resolve, step_inputs
from tensorwright.runtime.engine.tensorrt.cuda import Cuda

ALIGNMENT = 256
"""The alignment in bytes of the addresses that set_tensor_address accepts."""
UNUSED = -1
"""The value of an entry of a block table that no kernel reads."""


def metadata_bytes(manifest: Manifest, sizes: dict[str, int]) -> int:
    return sum(_padded(4 * prod(resolve(tensor.shape, sizes))) for tensor in step_inputs(manifest.groups))


def logits_bytes(manifest: Manifest, rows: int) -> int:
    """Returns the bytes of so many rows of logits; 0 for a rank whose stage has none."""
    return 0 if manifest.sends else 4 * rows * manifest.vocab_size


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


class StepBuffers:
    """The buffers of a step. most: the sizes of the largest step.

    `stack` frees the memory, also if the allocation fails in the middle.
    """

    def __init__(self, stack: ExitStack, cuda: Cuda, stream: Any, manifest: Manifest, most: dict[str, int]):
        self._cuda, self._stream = cuda, stream
        self._tensors = step_inputs(manifest.groups)
        self._vocab_size = manifest.vocab_size
        size = metadata_bytes(manifest, most)
        self._metadata = self._take(stack, size)
        self._logits = self._take(stack, logits_bytes(manifest, most["rows"]))

    def _take(self, stack: ExitStack, size: int) -> tuple[np.ndarray, int]:
        """Allocates `size` bytes of page-locked memory and `size` bytes on the device. Returns (memory, address)."""
        host = self._cuda.allocate_host(size)
        stack.callback(self._cuda.free_host, host)
        address = self._cuda.allocate(size)
        stack.callback(self._cuda.free, address)
        return host, address

    @property
    def logits_address(self) -> int:
        return self._logits[1]

    def send(self, step: Any, sizes: dict[str, int]) -> dict[str, tuple[tuple[int, ...], int]]:
        """Begins to copy a step's metadata. Returns the (shape, address) of each array by name.

        Where `sizes` is larger than the step, it fills block tables with UNUSED and logit rows with row 0.
        """
        host, address = self._metadata
        found, at = {}, 0
        for tensor in self._tensors:
            shape = resolve(tensor.shape, sizes)
            size = 4 * prod(shape)
            _fill(host[at : at + size].view(np.int32).reshape(shape), _metadata_of(step, tensor), tensor)
            found[tensor.name] = (shape, address + at)
            at += _padded(size)
        self._cuda.copy_to_device(address, host[:at], self._stream)
        return found

    def receive(self, rows: int) -> np.ndarray:
        """Waits for everything in the stream and returns the logits, [rows, vocab] float32. The next step overwrites
        them."""
        host, address = self._logits
        part = host[: 4 * rows * self._vocab_size]
        if rows:
            self._cuda.copy_to_host(part, address, self._stream)
        self._cuda.synchronize(self._stream)
        return part.view(np.float32).reshape(rows, self._vocab_size)


def _metadata_of(step: Any, tensor: IoTensor) -> np.ndarray:
    name, _, group = tensor.name.partition(".")
    return getattr(step, name)(int(group)) if group else getattr(step, name)


def _fill(place: np.ndarray, values: np.ndarray, tensor: IoTensor) -> None:
    if place.shape != values.shape:
        place.fill(UNUSED if tensor.name.startswith("block_tables.") else 0)
    place[tuple(slice(0, n) for n in values.shape)] = values
