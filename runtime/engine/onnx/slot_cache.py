"""Keeps the keys and values of all slots in two arrays per layer, [slots, kv_heads, max_seq_len, head_dim].

ONNX Runtime gets addresses: a call's slots are one piece of each array, and the model's inputs past and outputs present
are the same memory. device_cache.py does the same on a GPU.
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
    """A piece of one array, slots side by side, which is an input (past) and an output (present) of the model."""

    past: str
    present: str
    shape: tuple[int, ...]
    address: int
    dtype: np.dtype


@dataclass(frozen=True)
class LayerArray:
    """The keys or the values of a layer. shape: the shape of one slot."""

    past: str
    present: str
    shape: tuple[int, int, int]
    dtype: str

    @property
    def slot_bytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def piece(self, address: int, first: int, count: int) -> Piece:
        """Returns the piece of `count` slots from slot `first` on. address: the address of slot 0."""
        return Piece(
            self.past, self.present, (count, *self.shape), address + first * self.slot_bytes, np.dtype(self.dtype)
        )


def layer_arrays(io: OnnxManifest, max_len: int) -> list[LayerArray]:
    """Returns the arrays of all layers, keys and values. max_len: the positions of a slot."""
    arrays = []
    for layer in io.layers:
        shape = (layer.kv_heads, max_len, layer.head_dim)
        arrays.append(LayerArray(layer.key, layer.present_key, shape, layer.dtype))
        arrays.append(LayerArray(layer.value, layer.present_value, shape, layer.dtype))
    return arrays


class SlotCache:
    """The cache in this machine's memory. The system provides a page of it at the first write."""

    device = "cpu"

    def __init__(self, io: OnnxManifest, slots: int, max_len: int):
        self._arrays = layer_arrays(io, max_len)
        try:
            self._data = [np.zeros((slots, *array.shape), array.dtype) for array in self._arrays]
        except MemoryError as error:
            size = format_size(slots * max_len * io.position_bytes)
            raise OutOfMemoryError(f"the KV cache of {slots} slots takes {size}: lower kv_cache_memory") from error

    def pieces(self, first: int, count: int) -> list[Piece]:
        """Returns the pieces of `count` slots from slot `first` on, for the keys and values of all layers."""
        return [
            array.piece(data.ctypes.data, first, count) for array, data in zip(self._arrays, self._data, strict=True)
        ]

    def copy(self, source: int, target: int, positions: int) -> None:
        """Copies the first positions of a slot to another slot."""
        for data in self._data:
            data[target, :, :positions] = data[source, :, :positions]

    def close(self) -> None:
        self._data = []
