"""Decodes the tensors of GGUF files as the model has them: some rows at a time, in the model's order of rows."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from tensorwright.models.dtypes import Ranges, Tensor, to_float32
from tensorwright.models.gguf.blocks import BlockType, CodedBlock, SummedBlock
from tensorwright.models.quantized.interface import Decoded
from tensorwright.models.quantized.scaled_codes import ScaledCodes, Span
from tensorwright.models.stored_tensors import StoredTensors


@dataclass(frozen=True)
class Rows:
    """Rows of a stored tensor that make a tensor of the model.

    first: the number of the first, where all dimensions of the stored tensor but the last `inner` are counted as one.
    order: the stored row of each row of the model, int64 [rows], counted from the first; None means as they are.
    """

    stored: StoredTensors
    name: str
    first: int = 0
    order: np.ndarray | None = None

    def take(self, rows: Span, inner: tuple[int, ...]) -> np.ndarray:
        """Returns rows [start, end), each of the shape `inner`."""
        data = self.stored.read(self.name).data.reshape(-1, *inner)
        if self.order is None:
            return data[self.first + rows[0] : self.first + rows[1]]
        return data[self.first + self.order[slice(*rows)]]


@dataclass(frozen=True)
class PlainTensor(Decoded):
    """A tensor that is stored without blocks. added: what is added to each number, which makes it float32."""

    parts: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    rows: Rows = field(repr=False)
    stored_dtype: str
    added: float = 0.0

    def read_part(self, ranges: Ranges) -> Tensor:
        first, *others = ranges
        data = self.rows.take(first, self.shape[1:])[(slice(None), *(slice(*span) for span in others))]
        tensor = Tensor(self.stored_dtype, data)
        return Tensor(self.dtype, to_float32(tensor) + np.float32(self.added)) if self.added else tensor


@dataclass(frozen=True)
class BlockMatrix(Decoded):
    """A matrix [N, K] in blocks that are decoded whole."""

    parts: tuple[str, ...]
    shape: tuple[int, ...]
    block: SummedBlock
    rows: Rows = field(repr=False)
    dtype: str = "float32"

    def read_part(self, ranges: Ranges) -> Tensor:
        rows, columns = ranges
        first, last = columns[0] // self.block.size, -(-columns[1] // self.block.size)
        with np.errstate(over="ignore", invalid="ignore"):  # Scales may be infinite: such weights are refused by name.
            values = self.block.decode(_blocks(self.rows, self.block, self.shape[1], rows, (first, last)))
        skip = columns[0] - first * self.block.size
        whole = values.reshape(rows[1] - rows[0], (last - first) * self.block.size)
        return Tensor("float32", whole[:, skip : skip + columns[1] - columns[0]])


@dataclass(frozen=True)
class Transposed(Decoded):
    """A matrix [K, N] of which the file has the transpose."""

    inner: Decoded

    @property
    def parts(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.inner.parts

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return self.inner.shape[::-1]

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return self.inner.dtype

    def read_part(self, ranges: Ranges) -> Tensor:
        tensor = self.inner.read_part(ranges[::-1])
        return Tensor(tensor.dtype, tensor.data.T)


def decoded(rows: Rows, shape: tuple[int, ...], block: BlockType | None, added: float = 0.0) -> Decoded:
    """Returns a tensor of this shape. block: the type of its blocks; such a tensor is a matrix. added: see
    PlainTensor."""
    parts = (rows.name,)
    if block is None:
        kind = rows.stored.dtype(rows.name)
        return PlainTensor(parts, shape, "float32" if added else kind, rows, kind, added)
    if isinstance(block, SummedBlock):
        return BlockMatrix(parts, shape, block, rows)
    return _coded(rows, shape, block)


def _coded(rows: Rows, shape: tuple[int, ...], block: CodedBlock) -> ScaledCodes:
    """Returns a matrix of whole numbers with a scale for each block."""
    k = shape[1]

    def codes(some: Span, columns: Span) -> np.ndarray:
        first, last = columns[0] // block.size, -(-columns[1] // block.size)
        numbers = block.codes(_blocks(rows, block, k, some, (first, last)))
        skip = columns[0] - first * block.size
        return numbers.reshape(some[1] - some[0], (last - first) * block.size)[:, skip : skip + columns[1] - columns[0]]

    def scales(some: Span, groups: Span) -> np.ndarray:
        return block.scale(_blocks(rows, block, k, some, groups)).reshape(some[1] - some[0], groups[1] - groups[0])

    return ScaledCodes((rows.name,), shape, "float32", codes, scales, None, block.size)


def _blocks(rows: Rows, block: BlockType, k: int, some: Span, blocks: Span) -> np.ndarray:
    """Returns blocks of rows as uint8 [rows * blocks, bytes of a block]. k: the numbers of a row."""
    taken = rows.take(some, (k // block.size, block.bytes))[:, slice(*blocks)]
    return np.ascontiguousarray(taken).reshape(-1, block.bytes)


def expert(whole: Rows, number: int, rows: int) -> Rows:
    """Returns the rows of one expert of a tensor [experts, rows, ...]."""
    return replace(whole, first=number * rows)
