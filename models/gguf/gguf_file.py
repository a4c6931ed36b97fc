"""Reads one GGUF file: checks the whole header, and maps tensors into memory when they are read.

The file has the magic "GGUF", a version, the counts of tensors and of metadata; then the metadata, each a key, a type
and a value; then the name, shape, type and offset of each tensor; then the data, aligned. All is little-endian. A shape
has the number of columns first; a `TensorInfo` has it as numpy does. (GGUF specification, version 3.)

A tensor of blocks is stored bytes here: its last size counts the bytes of a row, and `blocks` has its type.
"""

from __future__ import annotations

import struct
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from tensorwright.engine_format.dtypes import ITEM_BYTES
from tensorwright.errors import CheckpointError, UnsupportedModelError, reason
from tensorwright.models.dtypes import STORAGE, Tensor
from tensorwright.models.gguf.blocks import BLOCKS, PLAIN, UNREAD, BlockType
from tensorwright.models.stored_tensors import TensorInfo

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_HEADER_BYTES = 1 << 27
"""A vocabulary of 256,000 words with its merges takes 10 MB."""
MAX_ENTRIES = 1 << 20
"""The most tensors, and the most metadata."""
MAX_NAME_BYTES = 1024
MAX_DIMENSIONS = 4
_SIZE_BITS = 48
_STRING, _ARRAY = 8, 9
_NUMBERS = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
"""The numpy types of the metadata's numbers, by their numbers in the file."""


class GgufFile:
    """A checked file.

    metadata: by key, a number, a text, a list of texts, or a numpy array of numbers. tensors: the TensorInfo of each
    name. blocks: the type of the blocks of each tensor that has them. `read` maps bytes and does not load them.

    Raises CheckpointError, which names the file and the faulty offset or tensor, and UnsupportedModelError for types of
    tensors that are not read.
    """

    def __init__(self, path: Path):
        self.path = path
        self._bytes: np.memmap | None = None
        self.blocks: dict[str, BlockType] = {}
        try:
            self.size = path.stat().st_size
            header = np.memmap(path, np.uint8, "r")[:MAX_HEADER_BYTES] if self.size else np.empty(0, np.uint8)
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read ({reason(error)})") from error
        read = _Header(self, header)
        count, entries = self._read_counts(read)
        self.metadata: dict[str, Any] = {}
        for _ in range(entries):
            key = read.text("a metadata key", MAX_NAME_BYTES)
            if key in self.metadata:
                raise self.error(f"has the metadata {key!r:.100} twice")
            self.metadata[key] = read.value(key)
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 20 or alignment & alignment - 1:
            raise self.error(f"general.alignment must be a power of two, not {alignment!r:.100}")
        found = [self._read_entry(read, alignment) for _ in range(count)]
        start = -(-read.at // alignment) * alignment
        self.tensors: dict[str, TensorInfo] = {}
        for name, kind, shape, offset in found:
            if name in self.tensors:
                raise self.error(f"names the tensor {name!r:.100} twice")
            self.tensors[name] = self._info(name, kind, shape, start + offset)
        self._check_overlaps()

    def read(self, name: str) -> Tensor:
        """Returns a tensor as a read-only view of the file."""
        info = self.tensors[name]
        if self._bytes is None:
            self._bytes = np.memmap(self.path, np.uint8, "r")
        view = np.asarray(self._bytes[info.begin : info.end]).view(STORAGE[info.dtype])
        return Tensor(info.dtype, view.reshape(info.shape))

    def _read_counts(self, read: _Header) -> tuple[int, int]:
        if read.take(4, "the magic") != MAGIC:
            raise self.error('must begin with "GGUF"; it is no GGUF file')
        version = int(read.number(4))
        if version not in VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS
            what = "is big-endian" if swapped else f"is GGUF version {version}"
            raise UnsupportedModelError(f"{self.path}: {what}; little-endian files of version 2 and 3 are read")
        count, entries = int(read.number(10)), int(read.number(10))
        if max(count, entries) > MAX_ENTRIES:
            raise self.error(
                f"announces {count} tensors and {entries} metadata; at most {MAX_ENTRIES} of each are read"
            )
        return count, entries

    def _read_entry(self, read: _Header, alignment: int) -> tuple[str, int, tuple[int, ...], int]:
        """Returns the name, the number of the type, the shape and the offset of a tensor."""
        name = read.text("the name of a tensor", MAX_NAME_BYTES)
        dimensions = int(read.number(4))
        if dimensions > MAX_DIMENSIONS:
            raise self.error(f"tensor {name!r:.100} has {dimensions} dimensions, readable are at most {MAX_DIMENSIONS}")
        shape = tuple(int(read.number(10)) for _ in range(dimensions))[::-1]
        kind, offset = int(read.number(4)), int(read.number(10))
        if 0 in shape or prod(shape) >> _SIZE_BITS or offset >> _SIZE_BITS or offset % alignment:
            raise self.error(f"tensor {name!r:.100} has the shape {list(shape)} at offset {offset}")
        return name, kind, shape, offset

    def _info(self, name: str, kind: int, shape: tuple[int, ...], begin: int) -> TensorInfo:
        if kind in BLOCKS:
            block = BLOCKS[kind]
            if not shape or shape[-1] % block.size:
                raise self.error(
                    f"tensor {name!r:.100} has rows that blocks of {block.size} do not divide: {list(shape)}"
                )
            self.blocks[name] = block
            dtype, shape = "uint8", (*shape[:-1], shape[-1] // block.size * block.bytes)
        elif kind in PLAIN:
            dtype = PLAIN[kind]
        else:
            known = ", ".join([*(dtype.upper() for dtype in PLAIN.values()), *(each.name for each in BLOCKS.values())])
            raise UnsupportedModelError(
                f"{self.path}: tensor {name!r:.100} is of type {UNREAD.get(kind, kind)}, which is not read; give a "
                f"file of another type: {known}"
            )
        end = begin + prod(shape) * ITEM_BYTES[dtype]
        if end > self.size:
            raise self.error(
                f"tensor {name!r:.100} ends at offset {end}, but the file is {self.size} bytes long; it is truncated, "
                "download it again"
            )
        return TensorInfo(dtype, shape, begin, end)

    def _check_overlaps(self) -> None:
        position = 0
        for name, info in sorted(self.tensors.items(), key=lambda item: item[1].begin):
            if info.begin < position:
                raise self.error(f"tensor {name!r:.100} at offset {info.begin} overlaps the one before it")
            position = info.end

    def error(self, message: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {message}")


class _Header:
    """Reads the values of a header in turn. No value is larger than what is left of the header."""

    def __init__(self, file: GgufFile, data: np.ndarray):
        self._file, self._data, self.at = file, data, 0

    def take(self, count: int, what: str) -> bytes:
        left = len(self._data) - self.at
        if count > left:
            limit = f"; a header of more than {MAX_HEADER_BYTES} bytes is not read" if self._cut else ""
            raise self._file.error(
                f"{what} at offset {self.at} takes {count} bytes, and {left} are left; it is truncated or damaged, "
                f"download it again{limit}"
            )
        self.at += count
        return self._data[self.at - count : self.at].tobytes()

    @property
    def _cut(self) -> bool:
        return self._file.size > len(self._data)

    def number(self, kind: int) -> Any:
        """Returns a number of a type of the metadata as Python's own."""
        dtype = np.dtype(_NUMBERS[kind])
        return np.frombuffer(self.take(dtype.itemsize, "a number"), dtype)[0].item()

    def text(self, what: str, most: int = MAX_HEADER_BYTES) -> str:
        (length,) = struct.unpack("<Q", self.take(8, what))
        if length > most:
            raise self._file.error(f"{what} at offset {self.at} announces {length} bytes, more than {most}")
        data = self.take(length, what)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._file.error(f"{what} at offset {self.at - length} is no UTF-8 ({error})") from error

    def value(self, key: str) -> Any:
        kind = int(self.number(4))
        if kind in _NUMBERS:
            return self.number(kind)
        if kind == _STRING:
            return self.text(f"the value of {key!r:.100}")
        if kind != _ARRAY:
            raise self._file.error(f"the value of {key!r:.100} is of type {kind}, which no GGUF file has")
        element, count = int(self.number(4)), int(self.number(10))
        what = f"the list {key!r:.100}"
        if element in _NUMBERS:
            dtype = np.dtype(_NUMBERS[element])
            return np.frombuffer(self.take(count * dtype.itemsize, what), dtype)
        if element != _STRING:
            raise self._file.error(f"{what} holds values of type {element}, which is not read")
        if count * 8 > len(self._data) - self.at:  # Each text has a length of 8 bytes.
            self.take(count * 8, what)
        return [self.text(what) for _ in range(count)]
