"""Reads one .safetensors file: checks the whole header, and maps tensors into memory when they are read.

The file has 8 bytes of little-endian header length, a JSON header {name: {dtype, shape, data_offsets}}, then the data,
which the tensors must cover without gap or overlap.
"""

from __future__ import annotations

import json
import os
import reprlib
import struct
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from tensorwright.engine_format.dtypes import ITEM_BYTES
from tensorwright.errors import CheckpointError, reason
from tensorwright.models.dtypes import STORAGE, Tensor
from tensorwright.models.stored_tensors import TensorInfo

_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "F4": "float4_e2m1fn_x2",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
}
_STORED = {dtype: name for name, dtype in _DTYPES.items()}
_MAX_HEADER_BYTES = 100_000_000  # the format's own limit
_MAX_DIMENSIONS = 8
_SIZE_BITS = (
    48  # Sizes, offsets and numbers of elements are below 2^48: no checkpoint has more, and arithmetic is cheap.
)


def stored_name(dtype: str) -> str:
    """Returns a header's name of an element type: "BF16" for bfloat16."""
    return _STORED[dtype]


class SafetensorsFile:
    """A checked file. `tensors` has the TensorInfo of each name. `read` maps bytes and does not load them; `load` does.

    Raises CheckpointError, which names the file and the faulty offset or tensor.
    """

    def __init__(self, path: Path):
        self.path = path
        self._bytes: np.memmap | None = None
        try:
            self._mark = _mark(path.stat())
            self.size = self._mark[0]
            header, self._data_start = self._read_header()
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read ({reason(error)})") from error
        self.tensors = {name: self._parse_entry(name, entry) for name, entry in header.items()}
        self._check_coverage()

    def read(self, name: str) -> Tensor:
        """Returns a tensor as a read-only view of the file."""
        info = self.tensors[name]
        if info.begin == info.end:  # An empty region of a file cannot be mapped.
            return Tensor(info.dtype, np.empty(info.shape, STORAGE[info.dtype]))
        if self._bytes is None:
            self._bytes = np.memmap(self.path, np.uint8, "r")
        view = np.asarray(self._bytes[info.begin : info.end]).view(STORAGE[info.dtype])
        return Tensor(info.dtype, view.reshape(info.shape))

    def load(self, name: str) -> Tensor:
        """Returns a copy of a tensor. Raises CheckpointError if the file is not the one that was checked. Use it while
        others may write the file: where a mapped file was cut short, reading it ends the process."""
        info = self.tensors[name]
        try:
            with self.path.open("rb") as file:
                file.seek(info.begin)
                data = np.fromfile(file, np.uint8, info.end - info.begin)
                unchanged = _mark(os.fstat(file.fileno())) == self._mark
        except OSError as error:
            raise CheckpointError(f"{self.path}: cannot be read ({reason(error)})") from error
        if not unchanged or len(data) != info.end - info.begin:
            raise self._error("was changed while it was read; try again when it is written")
        return Tensor(info.dtype, data.view(STORAGE[info.dtype]).reshape(info.shape))

    # -- the header -----------------------------------------------------------------------------------------------

    def _read_header(self) -> tuple[dict[str, Any], int]:
        with self.path.open("rb") as file:
            prefix = file.read(8)
            if len(prefix) < 8:
                raise self._error(f"must begin with 8 bytes of header length, but holds {self.size}; download it again")
            (length,) = struct.unpack("<Q", prefix)
            if length > min(_MAX_HEADER_BYTES, self.size - 8):
                raise self._error(
                    f"announces a header of {length} bytes at offset 8, but is {self.size} bytes long and may have one "
                    f"of {_MAX_HEADER_BYTES} bytes at most; it is truncated or no safetensors file, download it again"
                )
            text = file.read(length)
        try:
            header = json.loads(text.decode("utf-8"), object_pairs_hook=self._without_duplicates)
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{self.path}: the header at offset 8 is not JSON ({error})") from error
        if not isinstance(header, dict):
            raise self._error(f"the header must be a JSON object, not {type(header).__name__}")
        header.pop("__metadata__", None)
        return header, 8 + length

    def _without_duplicates(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table: dict[str, Any] = {}
        for name, value in pairs:
            if name in table:
                raise self._error(f"the header names {_short(name)} twice")
            table[name] = value
        return table

    def _parse_entry(self, name: str, entry: Any) -> TensorInfo:
        who = f"tensor {_short(name)}"
        if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
            raise self._error(f"{who} must have dtype, shape and data_offsets only; it has {_short(entry)}")
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(dtype, str) or dtype not in _DTYPES:
            raise self._error(f"{who} has dtype {_short(dtype)}; readable are {', '.join(_DTYPES)}")
        self._check_shape(who, shape)
        if not isinstance(offsets, list) or len(offsets) != 2 or not _all_counts(offsets):
            raise self._error(f"{who} has data_offsets {_short(offsets)}, not two offsets")
        if max(offsets) >> _SIZE_BITS:
            raise self._error(f"{who} has an offset of {_short(max(offsets))}, readable are those below 2^{_SIZE_BITS}")
        begin, end = (self._data_start + offset for offset in offsets)
        shape = self._stored_shape(who, dtype, shape)
        need = prod(shape) * ITEM_BYTES[_DTYPES[dtype]]
        if end - begin != need:
            raise self._error(f"{who} of {dtype} {shape} takes {need} bytes, not {end - begin}")
        if end > self.size:
            raise self._error(
                f"{who} ends at offset {end}, but the file is {self.size} bytes long; "
                "it is truncated, download it again"
            )
        return TensorInfo(_DTYPES[dtype], tuple(shape), begin, end)

    def _stored_shape(self, who: str, dtype: str, shape: list[int]) -> list[int]:
        """Returns the shape in elements of STORAGE: the header counts the elements of 4 bits, which share bytes."""
        if _DTYPES[dtype] != "float4_e2m1fn_x2":
            return shape
        if not shape or shape[-1] % 2:
            raise self._error(f"{who} of {dtype} has shape {shape}, whose last size must be even: two share a byte")
        return [*shape[:-1], shape[-1] // 2]

    def _check_shape(self, who: str, shape: Any) -> None:
        """Checks a shape before anything is computed with it: the types, the number of sizes, each size, and the number
        of elements. Raises CheckpointError."""
        if not isinstance(shape, list):
            raise self._error(f"{who} has shape {_short(shape)}, not a list of sizes")
        if len(shape) > _MAX_DIMENSIONS:
            raise self._error(f"{who} has {len(shape)} dimensions, readable are at most {_MAX_DIMENSIONS}")
        if not _all_counts(shape):
            raise self._error(f"{who} has shape {_short(shape)}, not a list of sizes")
        large = next((size for size in shape if size >> _SIZE_BITS), None)
        if large is not None:
            raise self._error(f"{who} has a size of {_short(large)}, readable are sizes below 2^{_SIZE_BITS}")
        if prod(max(1, size) for size in shape) >> _SIZE_BITS:  # numpy also counts a size of 0 as 1 here.
            raise self._error(f"{who} has a shape of 2^{_SIZE_BITS} elements or more, {shape}")

    def _check_coverage(self) -> None:
        position = self._data_start
        for name, info in sorted(self.tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
            if info.begin != position:
                what = "overlaps the one before" if info.begin < position else "leaves a gap before it"
                raise self._error(f"tensor {_short(name)} at offset {info.begin} {what}, which ends at {position}")
            position = info.end
        if position != self.size:
            raise self._error(f"the tensors end at offset {position}, but the file is {self.size} bytes long")

    def _error(self, message: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {message}")


def _mark(status: os.stat_result) -> tuple[int, int]:
    """Returns the size of a file and the time of its last change."""
    return status.st_size, status.st_mtime_ns


def _all_counts(values: list[Any]) -> bool:
    return all(isinstance(value, int) and not isinstance(value, bool) and value >= 0 for value in values)


def _short(value: Any) -> str:
    """Shortens a value for a message, for a header may hold values of any length and depth."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = 120
    return short.repr(value)
