"""What a step brings to the device and takes from it: metadata packed into one copy, and rows of logits.

Metadata lies packed in page-locked memory and in the same order on the device, every array where the library wants
arrays to begin; so one copy brings it, and steps of the same sizes have the same addresses.
"""

from __future__ import annotations

from contextlib import ExitStack
from math import prod
from typing import Any

import numpy as np

from tensorwright.engine_format.tensorrt_manifest import IoTensor, Manifest, resolve, step_inputs
from tensorwright.runtime.engine.tensorrt.cuda import Cuda

ALIGNMENT = 256
"""Of addresses that set_tensor_address takes."""
UNUSED = -1
"""An entry of a block table that no kernel reads."""


def metadata_bytes(manifest: Manifest, sizes: dict[str, int]) -> int:
    return sum(_padded(4 * prod(resolve(tensor.shape, sizes))) for tensor in step_inputs(manifest.groups))


def logits_bytes(manifest: Manifest, rows: int) -> int:
    return 4 * rows * manifest.vocab_size


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


class StepBuffers:
    """For steps of at most these sizes. What it takes is given back by `stack`, also when it does not get all."""

    def __init__(self, stack: ExitStack, cuda: Cuda, stream: Any, manifest: Manifest, most: dict[str, int]):
        self._cuda, self._stream = cuda, stream
        self._tensors = step_inputs(manifest.groups)
        self._vocab_size = manifest.vocab_size
        size = metadata_bytes(manifest, most)
        self._metadata = self._take(stack, size)
        self._logits = self._take(stack, logits_bytes(manifest, most["rows"]))

    def _take(self, stack: ExitStack, size: int) -> tuple[np.ndarray, int]:
        """(page-locked, on the device), `size` bytes each."""
        host = self._cuda.allocate_host(size)
        stack.callback(self._cuda.free_host, host)
        address = self._cuda.allocate(size)
        stack.callback(self._cuda.free, address)
        return host, address

    @property
    def logits_address(self) -> int:
        return self._logits[1]

    def send(self, step: Any, sizes: dict[str, int]) -> dict[str, tuple[tuple[int, ...], int]]:
        """Begins to copy a step's metadata; the (shape, address) of each array by its name.

        Where `sizes` is more than the step has, block tables are filled with UNUSED and logit rows with row 0.
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
        """[rows, vocab] float32 once everything in the stream is done. The next step overwrites it."""
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
