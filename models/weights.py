"""Weight expressions: how a weight of the graph is made of tensors of the checkpoint. Immutable, hashable, printable.

`str(expr)` and `parse_expr(text)` are inverses: "model.norm.weight" (quoted), concat(0, "a", "b"), transpose("x"),
slice(0, 4, 8, "x"), stack("a", "b"), reshape([2, 3], "x"). Nothing is read until `evaluate`; `evaluate_rows` reads
only the bytes that some rows of the result need.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol

import numpy as np

from tensorwright.errors import CheckpointError
from tensorwright.models.dtypes import Tensor, convert, widest

Ranges = tuple[tuple[int, int], ...]
"""One half-open interval per dimension."""


class TensorSource(Protocol):
    """What an expression is evaluated against; `tensorwright.models.checkpoint.Checkpoint` is one."""

    def shape(self, name: str) -> tuple[int, ...]: ...
    def dtype(self, name: str) -> str: ...
    def read(self, name: str) -> Tensor: ...


class WeightExpr(ABC):
    """Base of all expressions. Dimensions are non-negative; `dim` counts from 0."""

    @abstractmethod
    def refs(self) -> Iterator[str]:
        """The checkpoint names it reads, in order, with repetitions."""

    @abstractmethod
    def shape(self, source: TensorSource) -> tuple[int, ...]:
        """The result's shape. Raises CheckpointError where the parts do not fit together."""

    @abstractmethod
    def dtype(self, source: TensorSource) -> str:
        """The result's element type; parts of different types widen to float32."""

    @abstractmethod
    def region(self, source: TensorSource, ranges: Ranges) -> Tensor:
        """The part of the result inside `ranges`, one interval per dimension."""

    def concat(self, others: Sequence[WeightExpr], dim: int = 0) -> WeightExpr:
        """This, then the others, along `dim`."""
        parts: list[WeightExpr] = []
        for part in (self, *others):
            parts.extend(part.parts if isinstance(part, Concat) and part.dim == dim else (part,))
        return parts[0] if len(parts) == 1 else Concat(tuple(parts), dim)

    def stack(self, others: Sequence[WeightExpr] = ()) -> WeightExpr:
        """This and the others along a new dimension 0."""
        return Stack((self, *others))

    def transpose(self, dim0: int = 0, dim1: int = 1) -> WeightExpr:
        """Two dimensions swapped; swapping them back gives the original expression."""
        low, high = sorted((dim0, dim1))
        if low == high:
            return self
        if isinstance(self, Transpose) and (self.dim0, self.dim1) == (low, high):
            return self.part
        return Transpose(self, low, high)

    def slice(self, dim: int, start: int, end: int) -> WeightExpr:
        """Elements [start, end) of one dimension."""
        if isinstance(self, Slice) and self.dim == dim:
            if self.start + end > self.end:
                raise CheckpointError(f"slice [{start}, {end}) of dimension {dim} is outside {self}")
            return Slice(self.part, dim, self.start + start, self.start + end)
        return Slice(self, dim, start, end)

    def reshape(self, shape: Sequence[int]) -> WeightExpr:
        """The same elements in row-major order in another shape; no -1."""
        return Reshape(self, tuple(shape))


@dataclass(frozen=True)
class Ref(WeightExpr):
    """A tensor of the checkpoint, by name."""

    name: str

    def refs(self) -> Iterator[str]:
        yield self.name

    def shape(self, source: TensorSource) -> tuple[int, ...]:
        return source.shape(self.name)

    def dtype(self, source: TensorSource) -> str:
        return source.dtype(self.name)

    def region(self, source: TensorSource, ranges: Ranges) -> Tensor:
        tensor = source.read(self.name)
        return Tensor(tensor.dtype, tensor.data[_slices(ranges)])

    def __str__(self) -> str:
        return json.dumps(self.name)


@dataclass(frozen=True)
class _Unary(WeightExpr):
    part: WeightExpr

    def refs(self) -> Iterator[str]:
        return self.part.refs()

    def dtype(self, source: TensorSource) -> str:
        return self.part.dtype(source)


@dataclass(frozen=True)
class Transpose(_Unary):
    """Dimensions dim0 < dim1 of `part` swapped."""

    dim0: int = 0
    dim1: int = 1

    def shape(self, source: TensorSource) -> tuple[int, ...]:
        shape = self.part.shape(source)
        _require(self.dim1 < len(shape), self, f"its part has shape {list(shape)}")
        return _swap(shape, self.dim0, self.dim1)

    def region(self, source: TensorSource, ranges: Ranges) -> Tensor:
        tensor = self.part.region(source, _swap(ranges, self.dim0, self.dim1))
        return Tensor(tensor.dtype, tensor.data.swapaxes(self.dim0, self.dim1))

    def __str__(self) -> str:
        dims = "" if (self.dim0, self.dim1) == (0, 1) else f"{self.dim0}, {self.dim1}, "
        return f"transpose({dims}{self.part})"


@dataclass(frozen=True)
class Slice(_Unary):
    """Elements [start, end) of dimension `dim` of `part`."""

    dim: int
    start: int
    end: int

    def shape(self, source: TensorSource) -> tuple[int, ...]:
        shape = self.part.shape(source)
        inside = self.dim < len(shape) and 0 <= self.start <= self.end <= shape[self.dim]
        _require(inside, self, f"its part has shape {list(shape)}")
        return (*shape[: self.dim], self.end - self.start, *shape[self.dim + 1 :])

    def region(self, source: TensorSource, ranges: Ranges) -> Tensor:
        start, end = ranges[self.dim]
        moved = (start + self.start, end + self.start)
        return self.part.region(source, (*ranges[: self.dim], moved, *ranges[self.dim + 1 :]))

    def __str__(self) -> str:
        return f"slice({self.dim}, {self.start}, {self.end}, {self.part})"


@dataclass(frozen=True)
class Reshape(_Unary):
    """The elements of `part`, row-major, in shape `to`."""

    to: tuple[int, ...]

    def shape(self, source: TensorSource) -> tuple[int, ...]:
        shape = self.part.shape(source)
        _require(prod(shape) == prod(self.to), self, f"its part has shape {list(shape)}")
        return self.to

    def region(self, source: TensorSource, ranges: Ranges) -> Tensor:
        # Rows of the result are one run of elements; read the rows of the part that cover it, and cut.
        inner = self.part.shape(source)
        start, end = ranges[0] if ranges else (0, 1)
        row, part_row = prod(self.to[1:]), prod(inner[1:])
        first = start * row // part_row if part_row else 0
        last = -(-end * row // part_row) if part_row else 0
        covering = tuple((0, n) for n in inner)
        covering = ((first, last), *covering[1:]) if inner else ()
        tensor = self.part.region(source, covering)
        skip = start * row - first * part_row
        flat = tensor.data.reshape(-1)[skip : skip + (end - start) * row]
        rows = flat.reshape((end - start, *self.to[1:]) if self.to else ())
        return Tensor(tensor.dtype, rows[(slice(None), *_slices(ranges[1:]))] if ranges else rows)

    def __str__(self) -> str:
        return f"reshape([{', '.join(map(str, self.to))}], {self.part})"


@dataclass(frozen=True)
class _Joined(WeightExpr):
    parts: tuple[WeightExpr, ...]

    def refs(self) -> Iterator[str]:
        for part in self.parts:
            yield from part.refs()

    def dtype(self, source: TensorSource) -> str:
        return widest([part.dtype(source) for part in self.parts])


@dataclass(frozen=True)
class Concat(_Joined):
    """Parts one after the other along `dim`; their other dimensions agree."""

    dim: int = 0

    def shape(self, source: TensorSource) -> tuple[int, ...]:
        shapes = [part.shape(source) for part in self.parts]
        rests = {(*s[: self.dim], *s[self.dim + 1 :]) if self.dim < len(s) else None for s in shapes}
        _require(len(rests) == 1 and None not in rests, self, f"its parts have shapes {list(map(list, shapes))}")
        first = shapes[0]
        return (*first[: self.dim], sum(s[self.dim] for s in shapes), *first[self.dim + 1 :])

    def region(self, source: TensorSource, ranges: Ranges) -> Tensor:
        start, end = ranges[self.dim]
        pieces: list[Tensor] = []
        offset = 0
        for part in self.parts:
            size = part.shape(source)[self.dim]
            low, high = max(start - offset, 0), min(end - offset, size)
            if low < high or (start == end and not pieces):  # an empty range still needs one piece for its shape
                inside = (min(low, size), max(min(low, size), high))
                pieces.append(part.region(source, (*ranges[: self.dim], inside, *ranges[self.dim + 1 :])))
            offset += size
        return _join(pieces, self.dtype(source), lambda arrays: np.concatenate(arrays, self.dim))

    def __str__(self) -> str:
        return f"concat({self.dim}, {', '.join(map(str, self.parts))})"


@dataclass(frozen=True)
class Stack(_Joined):
    """Parts of one shape along a new dimension 0."""

    def shape(self, source: TensorSource) -> tuple[int, ...]:
        shapes = [part.shape(source) for part in self.parts]
        _require(len(set(shapes)) == 1, self, f"its parts have shapes {list(map(list, shapes))}")
        return (len(shapes), *shapes[0])

    def region(self, source: TensorSource, ranges: Ranges) -> Tensor:
        start, end = ranges[0]
        pieces = [part.region(source, ranges[1:]) for part in self.parts[start:end]]
        if not pieces:
            piece = self.parts[0].region(source, ranges[1:])
            return Tensor(piece.dtype, piece.data[None][:0])
        return _join(pieces, self.dtype(source), np.stack)

    def __str__(self) -> str:
        return f"stack({', '.join(map(str, self.parts))})"


def evaluate(expr: WeightExpr, source: TensorSource) -> Tensor:
    """The whole result. A plain reference stays a file view; everything else is in memory.

    Raises CheckpointError if a name is missing or the shapes do not fit.
    """
    return expr.region(source, tuple((0, n) for n in expr.shape(source)))


def evaluate_rows(expr: WeightExpr, source: TensorSource, start: int, end: int) -> Tensor:
    """Rows [start, end) of dimension 0 of the result, reading no more of the checkpoint than those rows need."""
    shape = expr.shape(source)
    _require(bool(shape) and 0 <= start <= end <= shape[0], expr, f"rows [{start}, {end}) of shape {list(shape)}")
    return expr.region(source, ((start, end), *((0, n) for n in shape[1:])))


def parse_expr(text: str) -> WeightExpr:
    """The inverse of str(expr). Raises GraphError that points at the offending character."""
    from tensorwright.models.weights_text import parse  # the parser needs the classes above

    return parse(text)


def _slices(ranges: Ranges) -> tuple[slice, ...]:
    return tuple(slice(a, b) for a, b in ranges)


def _swap(items: tuple, i: int, j: int) -> tuple:
    swapped = list(items)
    swapped[i], swapped[j] = swapped[j], swapped[i]
    return tuple(swapped)


def _join(pieces: list[Tensor], dtype: str, join) -> Tensor:
    if len(pieces) == 1 and join is not np.stack:
        return convert(pieces[0], dtype)
    return Tensor(dtype, join([convert(piece, dtype).data for piece in pieces]))


def _require(condition: bool, expr: WeightExpr, came: str) -> None:
    if not condition:
        raise CheckpointError(f"weight expression does not fit the checkpoint: {expr}: {came}")
