"""Defines weight expressions, which say how a weight of the graph is made of tensors of the checkpoint.

Expressions are immutable, hashable and printable. `str(expr)` and `parse_expr(text)` are inverses: "model.norm.weight"
(quoted), concat(0, "a", "b"), transpose("x"), slice(0, 4, 8, "x"), every(0, 1, 2, "x"), stack("a", "b"),
reshape([2, 3], "x"), repeat(0, 3, "x"), scaled(1, channel_scales(5, 384), "x"),
divided(0, 0, 1, channel_scales(5, 384), "x"), ordered(1, column_order("x", 384), "x").

This module has no data of tensors; `tensorwright.models.read_weights` reads the weight of an expression.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Protocol, TypeAlias

from tensorwright.errors import CheckpointError, GraphError

CHANNEL_SCALES = "channel_scales."
"""How the names of vectors begin that a calibration chooses. No tensor of a checkpoint has such a name."""
COLUMN_ORDER = "column_order."
"""How the names of vectors begin that say in which order the columns of a matrix form groups: before the matrix's name.
No tensor has such a name either."""


class Shapes(Protocol):
    """The shapes of a checkpoint's tensors."""

    def shape(self, name: str) -> tuple[int, ...]: ...


class WeightExpr(ABC):
    """The base of all expressions. Dimensions are non-negative; `dim` counts from 0."""

    @abstractmethod
    def refs(self) -> Iterator[str]:
        """Yields the names of the checkpoint's tensors that the expression reads, in order, with repetitions."""

    @abstractmethod
    def shape(self, source: Shapes) -> tuple[int, ...]:
        """Returns the shape of the result. Raises CheckpointError if the parts do not fit together."""

    def concat(self, others: Sequence[WeightExpr], dim: int = 0) -> WeightExpr:
        """Returns the concatenation of this expression and the others along `dim`."""
        parts: list[WeightExpr] = []
        for part in (self, *others):
            parts.extend(part.parts if isinstance(part, Concat) and part.dim == dim else (part,))
        return parts[0] if len(parts) == 1 else Concat(tuple(parts), dim)

    def stack(self, others: Sequence[WeightExpr] = ()) -> WeightExpr:
        """Returns the stack of this expression and the others along a new dimension 0."""
        return Stack((self, *others))

    def transpose(self, dim0: int = 0, dim1: int = 1) -> WeightExpr:
        """Returns this expression with two dimensions swapped. Swapping twice gives the original expression."""
        low, high = sorted((dim0, dim1))
        if low == high:
            return self
        if isinstance(self, Transpose) and (self.dim0, self.dim1) == (low, high):
            return self.part
        return Transpose(self, low, high)

    def slice(self, dim: int, start: int, end: int) -> WeightExpr:
        """Returns elements [start, end) of one dimension. Raises CheckpointError if a slice leaves its part."""
        if isinstance(self, Slice) and self.dim == dim:
            if self.start + end > self.end:
                raise CheckpointError(f"slice [{start}, {end}) of dimension {dim} is outside {self}")
            return Slice(self.part, dim, self.start + start, self.start + end)
        return Slice(self, dim, start, end)

    def every(self, dim: int, start: int, step: int) -> WeightExpr:
        """Returns the elements start, start + step, start + 2 step, and so on, of one dimension."""
        return Every(self, dim, start, step)

    def reshape(self, shape: Sequence[int]) -> WeightExpr:
        """Returns the same elements, in row-major order, in another shape, which must not have -1."""
        return Reshape(self, tuple(shape))

    def repeat(self, dim: int, count: int) -> WeightExpr:
        """Returns the one element along `dim`, `count` times."""
        return self if count == 1 else Repeat(self, dim, count)


@dataclass(frozen=True)
class Ref(WeightExpr):
    """A tensor of the checkpoint, by name."""

    name: str

    def refs(self) -> Iterator[str]:
        yield self.name

    def shape(self, source: Shapes) -> tuple[int, ...]:
        return source.shape(self.name)

    def __str__(self) -> str:
        return json.dumps(self.name)


@dataclass(frozen=True)
class _Unary(WeightExpr):
    part: WeightExpr

    def refs(self) -> Iterator[str]:
        return self.part.refs()


@dataclass(frozen=True)
class Transpose(_Unary):
    """`part` with its dimensions dim0 < dim1 swapped."""

    dim0: int = 0
    dim1: int = 1

    def shape(self, source: Shapes) -> tuple[int, ...]:
        shape = self.part.shape(source)
        _require(self.dim1 < len(shape), self, f"its part has shape {list(shape)}")
        return swapped(shape, self.dim0, self.dim1)

    def __str__(self) -> str:
        dims = "" if (self.dim0, self.dim1) == (0, 1) else f"{self.dim0}, {self.dim1}, "
        return f"transpose({dims}{self.part})"


@dataclass(frozen=True)
class Slice(_Unary):
    """Elements [start, end) of dimension `dim` of `part`."""

    dim: int
    start: int
    end: int

    def shape(self, source: Shapes) -> tuple[int, ...]:
        shape = self.part.shape(source)
        inside = self.dim < len(shape) and 0 <= self.start <= self.end <= shape[self.dim]
        _require(inside, self, f"its part has shape {list(shape)}")
        return (*shape[: self.dim], self.end - self.start, *shape[self.dim + 1 :])

    def __str__(self) -> str:
        return f"slice({self.dim}, {self.start}, {self.end}, {self.part})"


@dataclass(frozen=True)
class Every(_Unary):
    """The elements start, start + step, and so on, of dimension `dim` of `part`."""

    dim: int
    start: int
    step: int

    def shape(self, source: Shapes) -> tuple[int, ...]:
        shape = self.part.shape(source)
        inside = self.dim < len(shape) and 0 <= self.start < shape[self.dim] and self.step >= 1
        _require(inside, self, f"its part has shape {list(shape)}")
        return (*shape[: self.dim], -(-(shape[self.dim] - self.start) // self.step), *shape[self.dim + 1 :])

    def __str__(self) -> str:
        return f"every({self.dim}, {self.start}, {self.step}, {self.part})"


@dataclass(frozen=True)
class Reshape(_Unary):
    """The elements of `part`, row-major, in shape `to`."""

    to: tuple[int, ...]

    def shape(self, source: Shapes) -> tuple[int, ...]:
        shape = self.part.shape(source)
        _require(prod(shape) == prod(self.to), self, f"its part has shape {list(shape)}")
        return self.to

    def __str__(self) -> str:
        return f"reshape([{', '.join(map(str, self.to))}], {self.part})"


@dataclass(frozen=True)
class Repeat(_Unary):
    """`part`, `count` times along dimension `dim`, of which it has one element."""

    dim: int
    count: int

    def shape(self, source: Shapes) -> tuple[int, ...]:
        shape = self.part.shape(source)
        _require(self.dim < len(shape) and shape[self.dim] == 1, self, f"its part has shape {list(shape)}")
        return (*shape[: self.dim], self.count, *shape[self.dim + 1 :])

    def __str__(self) -> str:
        return f"repeat({self.dim}, {self.count}, {self.part})"


@dataclass(frozen=True)
class _Joined(WeightExpr):
    parts: tuple[WeightExpr, ...]

    def refs(self) -> Iterator[str]:
        for part in self.parts:
            yield from part.refs()


@dataclass(frozen=True)
class Concat(_Joined):
    """Parts that follow each other along `dim`. Their other dimensions agree."""

    dim: int = 0

    def shape(self, source: Shapes) -> tuple[int, ...]:
        shapes = [part.shape(source) for part in self.parts]
        rests = {(*s[: self.dim], *s[self.dim + 1 :]) if self.dim < len(s) else None for s in shapes}
        _require(len(rests) == 1 and None not in rests, self, f"its parts have shapes {list(map(list, shapes))}")
        first = shapes[0]
        return (*first[: self.dim], sum(s[self.dim] for s in shapes), *first[self.dim + 1 :])

    def __str__(self) -> str:
        return f"concat({self.dim}, {', '.join(map(str, self.parts))})"


@dataclass(frozen=True)
class Stack(_Joined):
    """Parts of one shape along a new dimension 0."""

    def shape(self, source: Shapes) -> tuple[int, ...]:
        shapes = [part.shape(source) for part in self.parts]
        _require(len(set(shapes)) == 1, self, f"its parts have shapes {list(map(list, shapes))}")
        return (len(shapes), *shapes[0])

    def __str__(self) -> str:
        return f"stack({', '.join(map(str, self.parts))})"


@dataclass(frozen=True)
class ChannelScales(WeightExpr):
    """A vector of `size` positive numbers that a calibration chooses: no tensor of the checkpoint, so it has no refs.

    number: which of the graph's vectors. Its name is what a source of tensors knows it by.
    """

    number: int
    size: int

    @property
    def name(self) -> str:
        return f"{CHANNEL_SCALES}{self.number}"

    def refs(self) -> Iterator[str]:
        return iter(())

    def shape(self, source: Shapes) -> tuple[int, ...]:
        return (self.size,)

    def __str__(self) -> str:
        return f"channel_scales({self.number}, {self.size})"


@dataclass(frozen=True)
class Scaled(_Unary):
    """`part` times `by` along dimension `dim`, in float32. by: a vector that is made of one ChannelScales."""

    by: WeightExpr
    dim: int

    def shape(self, source: Shapes) -> tuple[int, ...]:
        shape, (size,) = self.part.shape(source), self.by.shape(source)
        _require(self.dim < len(shape) and shape[self.dim] == size, self, f"its part has shape {list(shape)}")
        return shape

    def __str__(self) -> str:
        return f"scaled({self.dim}, {self.by}, {self.part})"


@dataclass(frozen=True)
class Divided(_Unary):
    """`part` with the elements from `start` on of dimension `dim` divided by `by`, in float32.

    by: as that of Scaled; as many elements are divided as it has. offset: what the reader of the weight adds to it,
    which is 1 for a norm that stores its difference from one: an element w becomes (w + offset) / by - offset.
    """

    by: WeightExpr
    dim: int
    start: int = 0
    offset: int = 0

    def shape(self, source: Shapes) -> tuple[int, ...]:
        shape, (size,) = self.part.shape(source), self.by.shape(source)
        inside = self.dim < len(shape) and self.start >= 0 and self.start + size <= shape[self.dim]
        _require(inside, self, f"its part has shape {list(shape)}")
        return shape

    def __str__(self) -> str:
        return f"divided({self.dim}, {self.start}, {self.offset}, {self.by}, {self.part})"


@dataclass(frozen=True)
class ColumnOrder(WeightExpr):
    """The numbers of the `size` columns of a matrix of codes, in float32, such that the columns of a group follow each
    other: a checkpoint with act-order says which group each column is of.

    matrix: the name of the matrix.
    """

    matrix: str
    size: int

    @property
    def name(self) -> str:
        """What a source of tensors knows the vector by."""
        return f"{COLUMN_ORDER}{self.matrix}"

    def refs(self) -> Iterator[str]:
        yield self.matrix

    def shape(self, source: Shapes) -> tuple[int, ...]:
        return (self.size,)

    def __str__(self) -> str:
        return f"column_order({json.dumps(self.matrix)}, {self.size})"


@dataclass(frozen=True)
class Ordered(_Unary):
    """`part` with the elements of dimension `dim` in another order: element i is that of number by[i]."""

    by: ColumnOrder
    dim: int

    def shape(self, source: Shapes) -> tuple[int, ...]:
        shape = self.part.shape(source)
        _require(self.dim < len(shape) and shape[self.dim] == self.by.size, self, f"its part has shape {list(shape)}")
        return shape

    def __str__(self) -> str:
        return f"ordered({self.dim}, {self.by}, {self.part})"


def scales_of(expr: WeightExpr) -> list[ChannelScales]:
    """Returns the vectors of an expression that a calibration chooses, in order, with repetitions."""
    match expr:
        case ChannelScales():
            return [expr]
        case Scaled(part, by) | Divided(part, by):
            return [*scales_of(part), *scales_of(by)]
        case _Unary(part):
            return scales_of(part)
        case _Joined(parts):
            return [vector for part in parts for vector in scales_of(part)]
    return []


def without_scales(expr: WeightExpr, numbers: frozenset[int] | None = None) -> WeightExpr:
    """Returns the expression as if the vectors of these numbers were all ones. None means all vectors."""
    match expr:
        case Scaled(part, by) | Divided(part, by) if numbers is None or all(v.number in numbers for v in scales_of(by)):
            return without_scales(part, numbers)
        case _Unary(part):
            return replace(expr, part=without_scales(part, numbers))
        case _Joined(parts):
            return replace(expr, parts=tuple(without_scales(part, numbers) for part in parts))
    return expr


def swapped(items: tuple, i: int, j: int) -> tuple:
    """Returns the tuple with elements i and j swapped."""
    result = list(items)
    result[i], result[j] = result[j], result[i]
    return tuple(result)


def _require(condition: bool, expr: WeightExpr, came: str) -> None:
    if not condition:
        raise CheckpointError(f"weight expression does not fit the checkpoint: {expr}: {came}")


# -- text: expr = "json string" | name "(" item { "," item } ")"; item = int | "[" ints "]" | expr

_TOKEN = re.compile(r'\s*(?:(?P<string>"(?:[^"\\]|\\.)*")|(?P<int>-?\d+)|(?P<word>[a-z_]+)|(?P<mark>[(),\[\]]))')

_BLANKS = re.compile(r"\s*")
MAX_DEPTH = 50
"""The most expressions inside each other."""

Item: TypeAlias = WeightExpr | int | tuple[int, ...]


def parse_expr(text: str) -> WeightExpr:
    """Parses a text that is one expression: the inverse of str(expr).

    Raises GraphError that points at the first error.
    """
    parser = _Parser(text)
    expr = parser.item()
    if not isinstance(expr, WeightExpr):
        raise parser.error("an expression was expected")
    if parser.skip() < len(text):
        raise parser.error("text is left over")
    return expr


class _Parser:
    def __init__(self, text: str):
        self.text, self.position, self.depth = text, 0, 0

    def error(self, message: str) -> GraphError:
        return GraphError(f"weight expression: {message} at column {self.position + 1}: {self.text[:200]!r}")

    def skip(self) -> int:
        """Returns the position at which the next token begins."""
        blanks = _BLANKS.match(self.text, self.position)
        return self.position if blanks is None else blanks.end()

    def is_next(self, mark: str) -> bool:
        return self.text.startswith(mark, self.skip())

    def take(self) -> tuple[str, str]:
        match = _TOKEN.match(self.text, self.position)
        if match is None or match.lastgroup is None:
            raise self.error("a name, number or bracket was expected")
        self.position = match.end()
        return match.lastgroup, match[match.lastgroup]

    def expect(self, mark: str) -> None:
        if self.take() != ("mark", mark):
            raise self.error(f"{mark!r} was expected before here")

    def item(self) -> Item:
        kind, text = self.take()
        try:
            if kind == "string":
                return Ref(json.loads(text))
            if kind == "int":
                return int(text)
        except ValueError as error:  # The text has an escape that JSON lacks, or too many digits.
            raise self.error(str(error)) from error
        if text == "[":
            numbers = self.items("]")
            if not all(isinstance(i, int) for i in numbers):
                raise self.error("only whole numbers may stand in the brackets before here")
            return tuple(i for i in numbers if isinstance(i, int))
        if kind != "word":
            raise self.error("an expression was expected before here")
        self.expect("(")
        return self.build(text, self.items(")"))

    def items(self, close: str) -> list[Item]:
        found: list[Item] = []
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.error(f"at most {MAX_DEPTH} expressions may stand inside each other")
        token = self.take() if self.is_next(close) else ("mark", ",")
        while token == ("mark", ","):
            found.append(self.item())
            token = self.take()
        if token != ("mark", close):
            raise self.error(f"',' or {close!r} was expected before here")
        self.depth -= 1
        return found

    def build(self, name: str, items: list[Item]) -> WeightExpr:
        match name, items:
            case "transpose", [WeightExpr() as part]:
                return Transpose(part)
            case "transpose", [int(a), int(b), WeightExpr() as part] if 0 <= a < b:
                return Transpose(part, a, b)
            case "slice", [int(dim), int(start), int(end), WeightExpr() as part]:
                return Slice(part, dim, start, end)
            case "every", [int(dim), int(start), int(step), WeightExpr() as part]:
                return Every(part, dim, start, step)
            case "reshape", [tuple(shape), WeightExpr() as part]:
                return Reshape(part, shape)
            case "repeat", [int(dim), int(count), WeightExpr() as part] if count > 0:
                return Repeat(part, dim, count)
            case "channel_scales", [int(number), int(size)] if number >= 0 and size >= 0:
                return ChannelScales(number, size)
            case "scaled", [int(dim), WeightExpr() as by, WeightExpr() as part]:
                return Scaled(part, by, dim)
            case "column_order", [Ref(matrix), int(size)] if size >= 0:
                return ColumnOrder(matrix, size)
            case "ordered", [int(dim), ColumnOrder() as by, WeightExpr() as part]:
                return Ordered(part, by, dim)
            case "divided", [int(dim), int(start), int(offset), WeightExpr() as by, WeightExpr() as part]:
                return Divided(part, by, dim, start, offset)
            case "concat", [int(dim), *parts] if parts and all(isinstance(p, WeightExpr) for p in parts):
                return Concat(tuple(p for p in parts if isinstance(p, WeightExpr)), dim)
            case "stack", parts if parts and all(isinstance(p, WeightExpr) for p in parts):
                return Stack(tuple(p for p in parts if isinstance(p, WeightExpr)))
        raise self.error(f"{name} is no expression of {len(items)} such parts")
