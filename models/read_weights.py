"""Reads the weights that expressions of ir/weights.py describe: a whole weight, some rows, or any part.

Nothing is read before one of these functions is called, and no more than the requested part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Protocol

import numpy as np

from tensorwright.errors import CheckpointError
from tensorwright.ir.weights import (
    ChannelScales,
    ColumnOrder,
    Concat,
    Divided,
    Every,
    Ordered,
    Ref,
    Repeat,
    Reshape,
    Scaled,
    Slice,
    Stack,
    Transpose,
    WeightExpr,
    swapped,
)
from tensorwright.models.dtypes import Ranges, Tensor, convert, widest


class TensorSource(Protocol):
    """The tensors from which an expression is evaluated. `tensorwright.models.checkpoint.Checkpoint` is such a
    source. A source whose expressions have vectors of a calibration, or orders of columns, has them by their names."""

    def shape(self, name: str) -> tuple[int, ...]: ...
    def dtype(self, name: str) -> str: ...
    def read_part(self, name: str, ranges: Ranges) -> Tensor: ...


def evaluate(expr: WeightExpr, source: TensorSource) -> Tensor:
    """Returns the whole result. The result of a plain reference is a view of its file; any other result is in memory.

    Raises CheckpointError if a name is missing or the shapes do not fit.
    """
    return read_part(expr, source, tuple((0, n) for n in expr.shape(source)))


def evaluate_rows(expr: WeightExpr, source: TensorSource, start: int, end: int) -> Tensor:
    """Returns rows [start, end) of dimension 0 of the result. It reads only the parts of the checkpoint that these rows
    need. Raises CheckpointError if the rows do not exist."""
    shape = expr.shape(source)
    if not shape or not 0 <= start <= end <= shape[0]:
        raise CheckpointError(
            f"weight expression does not fit the checkpoint: {expr}: rows [{start}, {end}) of shape {list(shape)}"
        )
    return read_part(expr, source, ((start, end), *((0, n) for n in shape[1:])))


def evaluate_matrix_rows(expr: WeightExpr, source: TensorSource, matrix: int, start: int, end: int) -> Tensor:
    """Returns rows [start, end) of one matrix of a result [matrices, rows, columns]. It reads only what these need."""
    shape = expr.shape(source)
    if len(shape) != 3 or not 0 <= matrix < shape[0] or not 0 <= start <= end <= shape[1]:
        raise CheckpointError(
            f"weight expression does not fit the checkpoint: {expr}: rows [{start}, {end}) of matrix {matrix} of shape "
            f"{list(shape)}"
        )
    tensor = read_part(expr, source, ((matrix, matrix + 1), (start, end), (0, shape[2])))
    return Tensor(tensor.dtype, tensor.data[0])


def dtype_of(expr: WeightExpr, source: TensorSource) -> str:
    """Returns the element type of the result. Parts of different types widen to float32, or to float64 if one is."""
    match expr:
        case Ref(name):
            return source.dtype(name)
        case Transpose(part) | Slice(part) | Every(part) | Reshape(part) | Repeat(part) | Ordered(part):
            return dtype_of(part, source)
        case Concat(parts) | Stack(parts):
            return widest([dtype_of(part, source) for part in parts])
        case ChannelScales() | ColumnOrder() | Scaled() | Divided():
            return "float32"
    raise TypeError(f"{type(expr).__name__} is no weight expression that can be read")


def read_part(expr: WeightExpr, source: TensorSource, ranges: Ranges) -> Tensor:
    """Returns the part of the result inside `ranges`, which has one interval per dimension."""
    match expr:
        case Ref(name):
            return source.read_part(name, ranges)
        case Transpose(part, dim0, dim1):
            tensor = read_part(part, source, swapped(ranges, dim0, dim1))
            return Tensor(tensor.dtype, tensor.data.swapaxes(dim0, dim1))
        case Slice(part, dim, first, _):
            start, end = ranges[dim]
            return read_part(part, source, (*ranges[:dim], (start + first, end + first), *ranges[dim + 1 :]))
        case Every(part, dim, first, step):
            start, end = ranges[dim]
            covering = (first + start * step, first + (end - 1) * step + 1) if end > start else (first, first)
            tensor = read_part(part, source, (*ranges[:dim], covering, *ranges[dim + 1 :]))
            return Tensor(tensor.dtype, tensor.data[(slice(None),) * dim + (slice(None, None, step),)])
        case Repeat(part, dim, _):
            start, end = ranges[dim]
            tensor = read_part(part, source, (*ranges[:dim], (0, 1), *ranges[dim + 1 :]))
            return Tensor(tensor.dtype, np.repeat(tensor.data, end - start, axis=dim))
        case Reshape():
            return _read_reshaped(expr, source, ranges)
        case Concat():
            return _read_joined(expr, source, ranges)
        case Stack():
            return _read_stacked(expr, source, ranges)
        case ChannelScales() | ColumnOrder():
            return source.read_part(expr.name, ranges)
        case Ordered():
            return _read_ordered(expr, source, ranges)
        case Scaled():
            return _read_scaled(expr, source, ranges)
        case Divided():
            return _read_divided(expr, source, ranges)
    raise TypeError(f"{type(expr).__name__} is no weight expression that can be read")


def _read_reshaped(expr: Reshape, source: TensorSource, ranges: Ranges) -> Tensor:
    # Rows of the result are one run of elements. The rows of the part that cover this run are read and cut.
    inner = expr.part.shape(source)
    start, end = ranges[0] if ranges else (0, 1)
    row, part_row = prod(expr.to[1:]), prod(inner[1:])
    first = start * row // part_row if part_row else 0
    last = -(-end * row // part_row) if part_row else 0
    covering = tuple((0, n) for n in inner)
    covering = ((first, last), *covering[1:]) if inner else ()
    tensor = read_part(expr.part, source, covering)
    skip = start * row - first * part_row
    flat = tensor.data.reshape(-1)[skip : skip + (end - start) * row]
    rows = flat.reshape((end - start, *expr.to[1:]) if expr.to else ())
    return Tensor(tensor.dtype, rows[(slice(None), *_slices(ranges[1:]))] if ranges else rows)


def _read_joined(expr: Concat, source: TensorSource, ranges: Ranges) -> Tensor:
    start, end = ranges[expr.dim]
    pieces: list[Tensor] = []
    offset = 0
    for part in expr.parts:
        size = part.shape(source)[expr.dim]
        low, high = max(start - offset, 0), min(end - offset, size)
        if low < high or (start == end and not pieces):  # An empty range still needs one piece for its shape.
            inside = (min(low, size), max(min(low, size), high))
            pieces.append(read_part(part, source, (*ranges[: expr.dim], inside, *ranges[expr.dim + 1 :])))
        offset += size
    dtype = dtype_of(expr, source)
    if len(pieces) == 1:
        return convert(pieces[0], dtype)
    return _join(pieces, dtype, lambda arrays: np.concatenate(arrays, expr.dim))


def _read_stacked(expr: Stack, source: TensorSource, ranges: Ranges) -> Tensor:
    start, end = ranges[0]
    pieces = [read_part(part, source, ranges[1:]) for part in expr.parts[start:end]]
    if not pieces:
        piece = read_part(expr.parts[0], source, ranges[1:])
        return Tensor(piece.dtype, piece.data[None][:0])
    return _join(pieces, dtype_of(expr, source), np.stack)


def _read_scaled(expr: Scaled, source: TensorSource, ranges: Ranges) -> Tensor:
    tensor = convert(read_part(expr.part, source, ranges), "float32")
    vector = read_part(expr.by, source, (ranges[expr.dim],)).data
    return Tensor("float32", tensor.data * _along(vector, expr.dim, len(ranges)))


def _read_ordered(expr: Ordered, source: TensorSource, ranges: Ranges) -> Tensor:
    # Neighbours of the result lie anywhere in the part, so all of it is read along this dimension.
    whole = (0, expr.by.size)
    tensor = read_part(expr.part, source, (*ranges[: expr.dim], whole, *ranges[expr.dim + 1 :]))
    numbers = read_part(expr.by, source, (ranges[expr.dim],)).data.astype(np.int64)
    return Tensor(tensor.dtype, np.take(tensor.data, numbers, axis=expr.dim))


def _read_divided(expr: Divided, source: TensorSource, ranges: Ranges) -> Tensor:
    start, end = ranges[expr.dim]
    (size,) = expr.by.shape(source)
    low, high = max(start, expr.start), min(end, expr.start + size)
    data = convert(read_part(expr.part, source, ranges), "float32").data
    if low >= high:
        return Tensor("float32", data)
    vector = read_part(expr.by, source, ((low - expr.start, high - expr.start),)).data
    data = np.array(data, np.float32)
    inside = data[(slice(None),) * expr.dim + (slice(low - start, high - start),)]
    inside += np.float32(expr.offset)
    inside /= _along(vector, expr.dim, len(ranges))
    inside -= np.float32(expr.offset)
    return Tensor("float32", data)


def _along(vector: np.ndarray, dim: int, rank: int) -> np.ndarray:
    """Returns a vector [n] in a shape whose dimension `dim` of `rank` is n and all others are 1."""
    return vector.reshape((-1,) + (1,) * (rank - 1 - dim))


def _join(pieces: list[Tensor], dtype: str, join: Callable[[Sequence[np.ndarray]], np.ndarray]) -> Tensor:
    return Tensor(dtype, join([convert(piece, dtype).data for piece in pieces]))


def _slices(ranges: Ranges) -> tuple[slice, ...]:
    return tuple(slice(a, b) for a, b in ranges)
