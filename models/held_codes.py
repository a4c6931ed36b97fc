"""Finds matrices of a quantized checkpoint whose codes and scales a format of engines holds as they are.

Such a matrix is not rounded a second time: the engine gets the codes themselves. Rows of several matrices may be cut,
taken in turns, and joined. Columns may not, for they share scales; but all may be put in the order of their groups.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from tensorwright.engine_format.weight_formats import FLOAT16, LANES, WeightFormat
from tensorwright.ir.weights import Concat, Every, Ordered, Ref, Slice, Stack, Transpose, WeightExpr
from tensorwright.models.dtypes import Ranges, bfloat16_bits, float32_from_bits
from tensorwright.models.quantized.fp8 import BlockScaled
from tensorwright.models.quantized.interface import Decoded
from tensorwright.models.quantized.mxfp4 import DOUBLED, Mxfp4
from tensorwright.models.quantized.mxfp4 import GROUP as MXFP4_GROUP
from tensorwright.models.quantized.scaled_codes import ScaledCodes


@runtime_checkable
class CodedSource(Protocol):
    """A source of tensors, some of which are decoded from codes."""

    def decoded(self, name: str) -> Decoded | None: ...
    def column_order(self, name: str) -> np.ndarray | None: ...
    def shape(self, name: str) -> tuple[int, ...]: ...


@dataclass(frozen=True)
class InOrder:
    """A source whose matrices of codes have their columns in another order."""

    source: CodedSource
    columns: np.ndarray

    def decoded(self, name: str) -> Decoded | None:
        """Returns the matrix with its columns in this order; None if it has no codes, or other columns."""
        matrix = self.source.decoded(name)
        if not isinstance(matrix, ScaledCodes) or matrix.shape[1] != len(self.columns):
            return None
        return matrix.in_order(self.columns)

    def column_order(self, name: str) -> np.ndarray | None:
        return None

    def shape(self, name: str) -> tuple[int, ...]:
        return self.source.shape(name)


@dataclass(frozen=True)
class HeldCodes:
    """Rows of codes in a format.

    values: whole numbers [..., groups, elements of a group as stored], less the zero points, and doubled for mxfp4; for
    fp8 float32;
    scales: float32
    [..., groups]; fits: bool [...], whether the format holds a row exactly. The other rows have codes of no meaning.
    zeros: the zero points, uint8 [..., groups], of a format that has them.
    """

    values: np.ndarray
    scales: np.ndarray
    fits: np.ndarray
    zeros: np.ndarray | None = None

    def panels(self) -> np.ndarray:
        """Returns for each panel of 16 rows whether all of its rows fit."""
        return np.logical_and.reduceat(self.fits, np.arange(0, len(self.fits), LANES))


def read_codes(expr: WeightExpr, source: object, fmt: WeightFormat, ranges: Ranges) -> HeldCodes | None:
    """Returns the codes of the part inside `ranges`, which take all columns; None if no row can be held.

    No row can be in a 2:4 sparse format, which does not keep all codes.
    """
    if fmt.has_steps or fmt.sparse or not isinstance(source, CodedSource):
        return None
    rows = len(ranges) - 1
    match expr:
        case Ref(name):
            matrix = source.decoded(name)
            if isinstance(matrix, BlockScaled):
                return _codes_of_blocks(matrix, fmt, ranges)
            return _codes_of(matrix, fmt, ranges[0]) if isinstance(matrix, ScaledCodes) else None
        case Ordered(part, by, dim) if dim == rows:
            columns = source.column_order(by.matrix)
            return None if columns is None else read_codes(part, InOrder(source, columns), fmt, ranges)
        case Transpose(Ref(name), 1, 2):
            experts = source.decoded(name)
            return _codes_of_experts(experts, fmt, ranges) if isinstance(experts, Mxfp4) else None
        case Slice(part, dim, first, _) if dim < rows:
            start, end = ranges[dim]
            return read_codes(part, source, fmt, (*ranges[:dim], (start + first, end + first), *ranges[dim + 1 :]))
        case Every(part, dim, first, step) if dim < rows:
            start, end = ranges[dim]
            covering = (first + start * step, first + (end - 1) * step + 1) if end > start else (first, first)
            held = read_codes(part, source, fmt, (*ranges[:dim], covering, *ranges[dim + 1 :]))
            return held and _each(held, lambda array: array[(slice(None),) * dim + (slice(None, None, step),)])
        case Concat(parts, dim) if dim < rows:
            return _joined(parts, dim, source, fmt, ranges)
        case Stack(parts) if rows > 1:
            pieces = [read_codes(part, source, fmt, ranges[1:]) for part in parts[slice(*ranges[0])]]
            return _gathered(pieces, lambda arrays: np.stack(arrays))
    return None


def _codes_of(matrix: ScaledCodes, fmt: WeightFormat, rows: tuple[int, int]) -> HeldCodes | None:
    k = matrix.shape[1]
    group = _shared_group(matrix.group, k, fmt)
    if group is None or not _in_turn(matrix):
        return None
    codes = np.ascontiguousarray(matrix.codes(rows, (0, k)))
    if (codes.dtype.kind == "f") != (fmt.kind == "fp"):
        return None
    values = codes if fmt.kind == "fp" else codes.astype(np.int16)
    groups = -(-k // group)
    if matrix.zeros is not None:
        zeros = matrix.zeros(rows, (0, groups)).astype(np.int16)
        values -= np.repeat(zeros, group, axis=1)[:, :k]
    return _held(values, matrix.scales(rows, (0, groups)), group, fmt)


def _codes_of_blocks(matrix: BlockScaled, fmt: WeightFormat, ranges: Ranges) -> HeldCodes | None:
    """Returns the codes of rows of a matrix, or of some experts. Every row has the scales of its blocks."""
    k = matrix.shape[-1]
    group = _shared_group(matrix.blocks[1], k, fmt)
    if fmt.kind != "fp" or group is None:
        return None
    values = matrix.codes(ranges)
    held = _held(values.reshape(-1, k), matrix.row_scales(ranges[:-1]).reshape(values[..., 0].size, -1), group, fmt)
    return _each(held, lambda array: array.reshape(*values.shape[:-1], *array.shape[1:]))


def _codes_of_experts(matrix: Mxfp4, fmt: WeightFormat, ranges: Ranges) -> HeldCodes | None:
    """Returns the codes of rows of some experts, [E, N, ...]."""
    k = matrix.shape[1]
    group = _shared_group(MXFP4_GROUP, k, fmt)
    if group is None or fmt.kind == "fp":
        return None
    values, scales = matrix.doubled(*ranges[:2])
    experts, rows = values.shape[:2]
    held = _held(values.reshape(experts * rows, k).astype(np.int16), scales.reshape(experts * rows, -1), group, fmt)
    return _each(held, lambda array: array.reshape(experts, rows, *array.shape[1:]))


def _shared_group(group: int, k: int, fmt: WeightFormat) -> int | None:
    """Returns how many columns share a scale of the checkpoint; None if the groups of the format do not divide them."""
    whole = group >= k
    return min(group, k) if whole or (fmt.group and group % fmt.group == 0) else None


def _held(differences: np.ndarray, scales: np.ndarray, group: int, fmt: WeightFormat) -> HeldCodes:
    """Puts codes less their zero points, int16 [rows, k], for fp8 float32, in a format.

    scales: float32 [rows, groups of `group`].
    """
    n, k = differences.shape
    padded = np.zeros((n, fmt.groups(k) * fmt.stored_group(k)), differences.dtype)
    padded[:, :k] = differences
    values = padded.reshape(n, fmt.groups(k), -1)
    zeros, inside = _placed(values, fmt)
    spread = np.ascontiguousarray(scales[:, np.arange(fmt.groups(k)) * fmt.group // group], np.float32)
    finite = np.isfinite(spread)
    kept = np.where(values.any(axis=2), spread, np.float32(0))  # A group of zeros needs no scale.
    return HeldCodes(values.astype(fmt.values_dtype), kept, inside & (finite & _stores(kept, fmt)).all(axis=1), zeros)


def _stores(scales: np.ndarray, fmt: WeightFormat) -> np.ndarray:
    """Returns which scales the format has exactly. Denormal numbers are zero in every kernel, so it has none."""
    if fmt.kind == "mxfp":
        bits = scales.view(np.uint32)
        stored = (bits & 0x807FFFFF) == 0  # Powers of two, and zero.
    elif fmt.scales == FLOAT16:
        with np.errstate(over="ignore"):
            stored = scales.astype(np.float16) == scales
    elif fmt.scale_bytes == 2:
        stored = float32_from_bits(bfloat16_bits(scales)) == scales
    else:
        stored = np.ones(scales.shape, bool)
    return stored & ((np.abs(scales) >= np.finfo(np.float32).tiny) | (scales == 0))


def _in_turn(matrix: ScaledCodes) -> bool:
    """Returns whether the columns of a group are neighbours, as they are in all files but those with act-order."""
    k = matrix.shape[1]
    return matrix.order is None or np.array_equal(matrix.order(), np.arange(k) // matrix.group)


def _placed(values: np.ndarray, fmt: WeightFormat) -> tuple[np.ndarray | None, np.ndarray]:
    """Returns zero points of the format for values [rows, groups, elements], and whether a row fits it with them.

    Only differences from zero points count, so the least zero point that makes no code negative will do.
    """
    if fmt.kind == "fp":
        return None, np.logical_and.reduce(_are_e4m3(values), axis=(1, 2))
    if fmt.kind == "mxfp":
        return None, np.logical_and.reduce(np.isin(values, DOUBLED), axis=(1, 2))
    least, most = values.min(axis=2), values.max(axis=2)
    if not fmt.has_zeros:
        low = -(1 << fmt.bits - 1)
        return None, (least >= low).all(axis=1) & (most < -low).all(axis=1)
    zeros = np.clip(-least, 0, fmt.largest)
    return zeros.astype(np.uint8), ((least + zeros >= 0) & (most + zeros <= fmt.largest)).all(axis=1)


def _are_e4m3(values: np.ndarray) -> np.ndarray:
    """Returns which float32 numbers are E4M3: 4 significant bits, and multiples of 2^-9 of at most 448."""
    few_bits = (values.view(np.uint32) & 0xFFFFF) == 0
    with np.errstate(invalid="ignore", over="ignore"):
        return few_bits & (np.abs(values) <= 448) & (np.rint(values * 512) == values * 512)


def _joined(
    parts: Sequence[WeightExpr], dim: int, source: CodedSource, fmt: WeightFormat, ranges: Ranges
) -> HeldCodes | None:
    (start, end), offset = ranges[dim], 0
    pieces: list[HeldCodes | None] = []
    for part in parts:
        size = part.shape(source)[dim]
        low, high = max(start - offset, 0), min(end - offset, size)
        if low < high:
            pieces.append(read_codes(part, source, fmt, (*ranges[:dim], (low, high), *ranges[dim + 1 :])))
        offset += size
    return _gathered(pieces, lambda arrays: np.concatenate(arrays, axis=dim))


def _each(held: HeldCodes, take: Callable[[np.ndarray], np.ndarray]) -> HeldCodes:
    zeros = None if held.zeros is None else take(held.zeros)
    return HeldCodes(take(held.values), take(held.scales), take(held.fits), zeros)


def _gathered(
    pieces: Sequence[HeldCodes | None], join: Callable[[Sequence[np.ndarray]], np.ndarray]
) -> HeldCodes | None:
    """Joins pieces; None if one of them has no codes at all."""
    held = [piece for piece in pieces if piece is not None]
    if not held or len(held) < len(pieces):
        return None
    zeros = [h.zeros for h in held if h.zeros is not None]
    return HeldCodes(
        join([h.values for h in held]), join([h.scales for h in held]), join([h.fits for h in held]),
        join(zeros) if zeros else None,
    )  # fmt: skip
