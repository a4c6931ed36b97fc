"""Streams weights of the plugin form: matrices as [K, N], by columns of the checkpoint's [N, K], a few MB at a time.

matrix          [K, N] of the activation type
dequantizable   int4 and int8: [K', N] and scales [K' / group, N], K' whole groups; fp8: [K, N] and scales [N]
words           int4: int32 [ceil(K / 8), N], element k in bits 4 (k % 8), and scales [ceil(K / group), N]
grouped_rows    int8 [..., V, K'] and scales [..., V, K' / group]: an embedding, or matrices that are not turned; int4:
                two integers in a byte, the first of neighbours along K in the lower half
whole_rows      int8 [N, K], and scales [N, 1] float32: the weights of w8a8
fp8_rows        int8 [..., N, K], the bytes of E4M3, and scales [..., N, 1]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import prod

import numpy as np

from tensorwright.builder.emit.onnx.weights_source import Weights, expression_of, in_type, initializer_name, scales_of
from tensorwright.builder.emit.pack_rows import RowPacker, no_codes
from tensorwright.builder.emit.quantized_weights import RelativeError, quantized_chunks
from tensorwright.builder.emit.streamed_file import stored_bytes
from tensorwright.engine_format.weight_formats import LANES, WeightFormat
from tensorwright.errors import CheckpointError
from tensorwright.ir.graph import Value
from tensorwright.ir.weights import WeightExpr
from tensorwright.models.dtypes import Ranges, Tensor, convert
from tensorwright.models.read_weights import read_part
from tensorwright.plugins.quantized_matmul.fp8 import from_codes, to_codes
from tensorwright.plugins.quantized_matmul.quantize import Quantized, fp8_scales, unpack

_CHUNK_ELEMENTS = 2 << 20
_UNIT = 32
"""The least number of columns that are read together."""

Chunks = Iterator[tuple[int, np.ndarray]]
Pack = Callable[[np.ndarray, int], np.ndarray]
"""Takes int8 [K of a chunk in whole groups, N], or rows [N, K], and K without padding; returns the chunk's bytes."""


class PluginWeights(Weights):
    """Stores each weight once in every form that is asked for. `plain` keeps the checkpoint's own shape."""

    def matrix(self, value: Value) -> str:
        """Returns the initializer [K, N] of a weight [N, K]."""
        expr = expression_of(value, "a product's matrix")
        n, k = (int(d) for d in value.shape)
        chunks = partial(self._transposed, expr, n, k)
        return self._keep(value, "transposed", self.dtype, [("", self.dtype, (k, n))], chunks)[0]

    def dequantizable(self, value: Value, fmt: WeightFormat) -> tuple[str, str]:
        """Returns the values and scales for DequantizeLinear."""
        n, k = (int(d) for d in value.shape)
        expr = expression_of(value, "a quantized matrix")
        if fmt.kind == "fp":
            tensors = [(".fp8", fmt.dtype, (k, n)), (".scales", self.dtype, (n,))]
            chunks: Callable[[], Chunks] = partial(self._fp8, expr, n, k)
        else:
            padded = fmt.groups(k) * fmt.group
            tensors = [(f".{fmt.dtype}", fmt.dtype, (padded, n))]
            tensors += [(".scales", self.dtype, (fmt.groups(k), n))]
            chunks = partial(self._by_columns, expr, fmt, n, k, pack_nibbles if fmt.bits == 4 else keep_bytes)
        values, scales = self._keep(value, f"dequantizable {fmt}", str(fmt), tensors, chunks)
        return values, scales

    def words(self, value: Value, fmt: WeightFormat) -> tuple[str, str]:
        """Returns the packed words and scales for WeightOnlyLinear."""
        n, k = (int(d) for d in value.shape)
        tensors = [(".words", "int32", (-(-k // 8), n)), (".scales", self.dtype, (fmt.groups(k), n))]
        chunks = partial(self._by_columns, expression_of(value, "a quantized matrix"), fmt, n, k, pack_words)
        values, scales = self._keep(value, f"words {fmt}", str(fmt), tensors, chunks)
        return values, scales

    def grouped_rows(self, value: Value, fmt: WeightFormat) -> tuple[str, str]:
        """Returns the rows of an embedding or of matrices, as bytes, and their scales."""
        *outer, k = (int(d) for d in value.shape)
        groups, pack = fmt.groups(k), nibbles_of_rows if fmt.bits == 4 else keep_bytes
        row_bytes = groups * fmt.group * fmt.bits // 8
        tensors = [(f".{fmt.dtype}.rows", "int8", (*outer, row_bytes))]
        tensors += [(".rows.scales", self.dtype, (*outer, groups))]
        chunks = partial(self._by_rows, expression_of(value, "an embedding"), fmt, (*outer, k), pack)
        values, scales = self._keep(value, f"rows {fmt}", str(fmt), tensors, chunks)
        return values, scales

    def whole_rows(self, value: Value, fmt: WeightFormat) -> tuple[str, str]:
        """Returns a matrix whose rows have one scale each, and the scales."""
        n, k = (int(d) for d in value.shape)
        tensors = [(f".{fmt}.rows", fmt.dtype, (n, k)), (".rows.scales", "float32", (n, 1))]
        expr = expression_of(value, "a quantized matrix")
        chunks = partial(self._by_rows, expr, fmt, (n, k), without_padding, "float32")
        values, scales = self._keep(value, f"rows {fmt}", str(fmt), tensors, chunks)
        return values, scales

    def fp8_rows(self, value: Value, fmt: WeightFormat) -> tuple[str, str]:
        """Returns the bytes of E4M3 of one or several matrices as int8, and the scale of each row."""
        *outer, k = (int(d) for d in value.shape)
        tensors = [(f".{fmt}.rows", "int8", (*outer, k)), (".rows.scales", self.dtype, (*outer, 1))]
        chunks = partial(self._fp8_by_rows, expression_of(value, "a quantized matrix"), (*outer, k))
        values, scales = self._keep(value, f"rows {fmt}", str(fmt), tensors, chunks)
        return values, scales

    def _keep(
        self,
        value: Value,
        form: str,
        key: str,
        tensors: Sequence[tuple[str, str, tuple[int, ...]]],
        chunks: Callable[[], Chunks],
    ) -> list[str]:
        expr, name = expression_of(value, "a matrix"), initializer_name(value)
        if (expr, form) not in self._made:
            size = sum(stored_bytes(dtype, shape) for _, dtype, shape in tensors)
            # A matrix that is stored twice (rows to gather, columns to multiply by) counts twice in the sum of bits.
            entry = (expr, f"{key}, {form}" if (expr, key) in self.stored else key)
            self.stored[entry] = prod(int(d) for d in value.shape), size
            named = [(name + end, dtype, shape) for end, dtype, shape in tensors]
            self._made[expr, form] = self.model.stream(named, chunks)
        found: list[str] = self._made[expr, form]
        return found

    # -- chunks -----------------------------------------------------------------------------------------------------

    def _transposed(self, expr: WeightExpr, n: int, k: int) -> Chunks:
        for start, end in column_steps(n, k):
            part = read_part(expr, self.checkpoint, ((0, n), (start, end)))
            yield 0, in_type(part, self.dtype, str(expr)).T

    def _by_columns(self, expr: WeightExpr, fmt: WeightFormat, n: int, k: int, pack: Pack) -> Chunks:
        """Yields the packed values, some groups of all rows at a time; then all scales."""
        total, scales = self.errors.setdefault((expr, str(fmt)), RelativeError()), []
        for start, end in column_steps(n, k, fmt.group):
            block = self._floats(expr, ((0, n), (start, end)))
            made = quantized(str(expr), fmt, block, total)
            scales.append(made.scales.T)
            yield 0, pack(made.values.reshape(n, -1).T, end - start)
        yield 1, scales_of(str(expr), without_zeros(np.concatenate(scales)), self.dtype)

    def _by_rows(
        self, expr: WeightExpr, fmt: WeightFormat, shape: tuple[int, ...], pack: Pack, scale_dtype: str = ""
    ) -> Chunks:
        """Yields some packed rows of one matrix at a time; then all scales, of the activation type if scale_dtype says
        none."""
        total, scales = self.errors.setdefault((expr, str(fmt)), RelativeError()), []
        for ranges in row_steps(shape, max(1, _CHUNK_ELEMENTS // shape[-1])):
            made = quantized(str(expr), fmt, self._floats(expr, ranges), total)
            scales.append(made.scales)
            yield 0, pack(made.values.reshape(len(made.values), -1), shape[-1])
        yield 1, scales_of(str(expr), without_zeros(np.concatenate(scales)), scale_dtype or self.dtype)

    def _fp8(self, expr: WeightExpr, n: int, k: int) -> Chunks:
        """Reads the matrix twice: first for the scale of each row, then for the elements."""
        total, largest = self.errors.setdefault((expr, "fp8"), RelativeError()), np.zeros(n, np.float32)
        for start, end in column_steps(n, k, 8, max(1, _CHUNK_ELEMENTS // 8)):
            block = self._floats(expr, ((0, n), (start, end)), np.float32)
            largest = np.maximum(largest, np.abs(block).max(axis=1, initial=0))
        scales = _fp8_scales(expr, largest)
        for start, end in column_steps(n, k, 8, max(1, _CHUNK_ELEMENTS // 8)):
            block = self._floats(expr, ((0, n), (start, end)), np.float32)
            codes = to_codes(block / scales[:, None])
            _add_fp8_error(total, codes, scales, block)
            yield 0, codes.T
        yield 1, scales_of(str(expr), scales, self.dtype)

    def _fp8_by_rows(self, expr: WeightExpr, shape: tuple[int, ...]) -> Chunks:
        total, scales = self.errors.setdefault((expr, "fp8"), RelativeError()), []
        for ranges in row_steps(shape, max(1, _CHUNK_ELEMENTS // (8 * shape[-1]))):
            block = self._floats(expr, ranges, np.float32)
            found = _fp8_scales(expr, np.abs(block).max(axis=1, initial=0))
            codes = to_codes(block / found[:, None])
            _add_fp8_error(total, codes, found, block)
            scales.append(found[:, None])
            yield 0, codes
        yield 1, scales_of(str(expr), np.concatenate(scales), self.dtype)

    def _floats(self, expr: WeightExpr, ranges: Ranges, dtype: type | None = None) -> np.ndarray:
        """Returns a contiguous part of one matrix: float32, or bfloat16 bits if stored so and `dtype` is not given."""
        tensor: Tensor = read_part(expr, self.checkpoint, ranges)
        kept = "bfloat16" if tensor.dtype == "bfloat16" and dtype is None else "float32"
        data = convert(tensor, kept).data
        return np.ascontiguousarray(data.reshape(data.shape[-2:]))


def _fp8_scales(expr: WeightExpr, largest: np.ndarray) -> np.ndarray:
    """Returns the scale of each row. Raises CheckpointError for a row that no scale can carry."""
    if not np.isfinite(largest).all():
        raise CheckpointError(f"{expr} holds an infinity or a NaN, which no scale can carry; it cannot be fp8")
    return fp8_scales(largest)


def _add_fp8_error(total: RelativeError, codes: np.ndarray, scales: np.ndarray, block: np.ndarray) -> None:
    lost = (from_codes(codes) * scales[:, None] - block).astype(np.float64)
    total.add(float(np.square(lost).sum()), float(np.square(block.astype(np.float64)).sum()))


def quantized(name: str, fmt: WeightFormat, block: np.ndarray, total: RelativeError) -> Quantized:
    """Quantizes a block of whole groups by the C++ of the CPU engine, whose bits are those of quantize.py."""
    rows, k = block.shape
    packer = RowPacker(fmt, k, lambda a, b: block[a:b], no_codes)
    panels = quantized_chunks(name, packer, rows, gated=False, total=total)
    parts, done = [], 0
    for part in panels:
        count = min(rows - done, part.size // fmt.panel_bytes(k) * LANES)
        parts.append(unpack(part, fmt, count, k))
        done += count
    return Quantized(np.concatenate([p.values for p in parts]), np.concatenate([p.scales for p in parts]))


def without_zeros(scales: np.ndarray) -> np.ndarray:
    """Replaces scales of 0 by 1. A group of zeros may have any scale; TensorRT's parser takes none that is 0."""
    return np.where(scales == 0, np.float32(1), scales)


def column_steps(n: int, k: int, unit: int = _UNIT, most: int | None = None) -> Iterator[tuple[int, int]]:
    """Yields [start, end) of K in multiples of `unit`, at most about `most` elements of N x K each."""
    step = max(1, (most or _CHUNK_ELEMENTS) // (n * unit)) * unit
    for start in range(0, k, step):
        yield start, min(k, start + step)


def row_steps(shape: tuple[int, ...], step: int) -> Iterator[Ranges]:
    """Yields the ranges of at most `step` rows of one matrix at a time, of a weight [..., N, K], in order."""
    *stacked, n, k = shape
    for matrix in np.ndindex(*stacked):
        for start in range(0, n, step):
            yield (*((at, at + 1) for at in matrix), (start, min(n, start + step)), (0, k))


def keep_bytes(values: np.ndarray, k: int) -> np.ndarray:
    return values


def without_padding(values: np.ndarray, k: int) -> np.ndarray:
    """Cuts rows that are padded to whole groups."""
    return np.ascontiguousarray(values[:, :k])


def pack_nibbles(values: np.ndarray, k: int) -> np.ndarray:
    """Packs int8 into uint8 as ONNX's INT4: elements in order, the first of two in the lower half of a byte."""
    flat = np.ascontiguousarray(values).reshape(-1, 2).view(np.uint8) & 15
    return flat[:, 0] | flat[:, 1] << 4


def nibbles_of_rows(values: np.ndarray, k: int) -> np.ndarray:
    """Packs int8 [N, whole groups] into int8 of half the columns: the first of two neighbours is the lower half."""
    return pack_nibbles(values, k).reshape(len(values), -1).view(np.int8)


def pack_words(values: np.ndarray, k: int) -> np.ndarray:
    """Packs int8 [whole groups, N] into int32 [ceil(k / 8), N]."""
    words = -(-k // 8)
    nibbles = values[: words * 8].view(np.uint8).reshape(words, 8, -1).astype(np.uint32) & 15
    shifts = np.arange(0, 32, 4, dtype=np.uint32)[None, :, None]
    return np.bitwise_or.reduce(nibbles << shifts, axis=1).view(np.int32)
