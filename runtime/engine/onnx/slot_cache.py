"""The keys and values of all slots: per layer two arrays [slots, kv_heads, max_seq_len, head_dim].

ONNX Runtime is given addresses: a call's slots are one piece of each array, and what it calls past and present is the
same memory. device_cache.py has the same on a GPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tensorwright.engine_format.onnx_manifest import OnnxManifest
from tensorwright.errors import OutOfMemoryError
from tensorwright.sizes import format_size


@dataclass(frozen=True)
class Piece:
    """Slots side by side of one array, as an input and as an output."""

    past: str
    present: str
    shape: tuple[int, ...]
    address: int
    dtype: np.dtype


@dataclass(frozen=True)
class LayerArray:
    """Keys or values of a layer. shape: of one slot."""

    past: str
    present: str
    shape: tuple[int, int, int]
    dtype: str

    @property
    def slot_bytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def piece(self, address: int, first: int, count: int) -> Piece:
        """address: of slot 0."""
        return Piece(
            self.past, self.present, (count, *self.shape), address + first * self.slot_bytes, np.dtype(self.dtype)
        )


def layer_arrays(io: OnnxManifest, max_len: int) -> list[LayerArray]:
    """Of all layers, keys and values."""
    arrays = []
    for layer in io.layers:
        shape = (layer.kv_heads, max_len, layer.head_dim)
        arrays.append(LayerArray(layer.key, layer.present_key, shape, layer.dtype))
        arrays.append(LayerArray(layer.value, layer.present_value, shape, layer.dtype))
    return arrays


class SlotCache:
    """In this machine's memory; pages are taken from the system when they are first written."""

    device = "cpu"

    def __init__(self, io: OnnxManifest, slots: int, max_len: int):
        self._arrays = layer_arrays(io, max_len)
        try:
            self._data = [np.zeros((slots, *array.shape), array.dtype) for array in self._arrays]
        except MemoryError as error:
            size = format_size(slots * max_len * io.position_bytes)
            raise OutOfMemoryError(f"the KV cache of {slots} slots takes {size}: lower kv_cache_memory") from error

    def pieces(self, first: int, count: int) -> list[Piece]:
        """Of all layers, keys and values."""
        return [
            array.piece(data.ctypes.data, first, count) for array, data in zip(self._arrays, self._data, strict=True)
        ]

    def copy(self, source: int, target: int, positions: int) -> None:
        """The first positions of a slot."""
        for data in self._data:
            data[target, :, :positions] = data[source, :, :positions]

    def close(self) -> None:
        self._data = []
