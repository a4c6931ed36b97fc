"""Keeps the slot cache in a GPU's memory, and copies slots there.

ONNX Runtime allocates the cache, and ONNX Runtime's Identity copies slots, so no other package of CUDA is needed. The
tests run the copier without a GPU; the rest ran on an H100 (docs/gpu.md).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorwright.engine_format.onnx_manifest import OnnxManifest
from tensorwright.errors import OutOfMemoryError
from tensorwright.runtime.engine.onnx.slot_cache import Piece, layer_arrays
from tensorwright.sizes import format_size

FLOAT, FLOAT16 = 1, 10  # ONNX's numbers for these types


class DeviceSlotCache:
    """The same as SlotCache, but on GPU 0."""

    device = "cuda"

    def __init__(self, ort: Any, io: OnnxManifest, slots: int, max_len: int):
        self._arrays = layer_arrays(io, max_len)
        try:
            self._values = [
                ort.OrtValue.ortvalue_from_numpy(np.zeros((slots, *array.shape), array.dtype), self.device, 0)
                for array in self._arrays
            ]
        except Exception as error:  # onnxruntime's own classes of errors share no base
            size = format_size(slots * max_len * io.position_bytes)
            raise OutOfMemoryError(
                f"the KV cache of {slots} slots takes {size}, which the GPU did not give ({error}): lower "
                "kv_cache_memory"
            ) from error
        self._copiers = {dtype: Copier(ort, dtype, self.device) for dtype in {array.dtype for array in self._arrays}}

    def pieces(self, first: int, count: int) -> list[Piece]:
        """Returns the pieces of `count` slots from slot `first` on, for the keys and values of all layers."""
        return [
            array.piece(value.data_ptr(), first, count) for array, value in zip(self._arrays, self._values, strict=True)
        ]

    def copy(self, source: int, target: int, positions: int) -> None:
        """Copies the whole slot, because the first positions of a slot do not lie side by side."""
        for array, value in zip(self._arrays, self._values, strict=True):
            first, size = value.data_ptr(), array.slot_bytes
            self._copiers[array.dtype].copy(first + source * size, first + target * size, size)

    def close(self) -> None:
        self._values, self._copiers = [], {}


class Copier:
    """Copies bytes between two addresses of a device, as numbers of the type `dtype`."""

    def __init__(self, ort: Any, dtype: str, device: str):
        provider = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}[device]
        self._type, self._device = np.dtype(dtype), device
        self._session = ort.InferenceSession(identity_model(dtype), providers=[provider])

    def copy(self, source: int, target: int, size: int) -> None:
        """Copies `size` bytes, which must be a multiple of the type's size."""
        binding, shape = self._session.io_binding(), (size // self._type.itemsize,)
        binding.bind_input("x", self._device, 0, self._type, shape, source)
        binding.bind_output("y", self._device, 0, self._type, shape, target)
        self._session.run_with_iobinding(binding)
        binding.synchronize_outputs()


def identity_model(dtype: str) -> bytes:
    """Returns y = Identity(x) as an ONNX file. It writes protobuf's wire format itself, so that the runtime does not
    need the package onnx."""
    kind = {"float32": FLOAT, "float16": FLOAT16}[dtype]

    def number(field: int, value: int) -> bytes:
        return bytes([field << 3, value])

    def message(field: int, data: bytes) -> bytes:
        return bytes([field << 3 | 2, len(data)]) + data

    # A ValueInfoProto is: name, type {tensor_type {elem_type, shape {dim {dim_param}}}}.
    def value(name: str) -> bytes:
        shape = message(2, message(1, message(2, b"n")))
        return message(1, name.encode()) + message(2, message(1, number(1, kind) + shape))

    node = message(1, b"x") + message(2, b"y") + message(4, b"Identity")
    graph = message(1, node) + message(2, b"copy") + message(11, value("x")) + message(12, value("y"))
    opset = message(1, b"") + number(2, 21)
    # The fields of a ModelProto are ir_version, graph and opset_import.
    return number(1, 10) + message(7, graph) + message(8, opset)
