"""Makes the values of a cached graph with fewer columns: those that one rank computes; not a pass itself.

`Narrowing.narrow(value, ranges)` builds the value's computation again for some of its columns. It goes back through the
operations that treat columns, or heads, alone, to the linears that make them: these get fewer rows of their weights.
What each operation does with columns is a rule (narrow_rules.py). Where a column depends on columns that the rank
lacks, as in most norms, a rule raises Undivided, and the caller leaves the computation whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tensorwright.errors import TensorwrightError
from tensorwright.ir import Graph, Node, Value
from tensorwright.ir.facts import StateLayer
from tensorwright.ir.ops import infer, kind_of
from tensorwright.passes.rewriting.cut import Range, Ranges, cut_columns, cut_heads, joined, width
from tensorwright.passes.rewriting.rewriter import make_node


class Undivided(TensorwrightError):
    """A computation that ranks cannot share; its text says why."""


@dataclass(frozen=True)
class Heads:
    """Columns that are heads of q, each of the same width."""

    heads: int
    kv_heads: int
    width: int


@dataclass(frozen=True)
class Row:
    """The row of q, k and v that a cache is written from, while it is narrowed.

    value: the whole row. head_dim: the columns of a head. copied: the columns of K and V that this rank has too, and
    another rank counts.
    """

    value: Value
    head_dim: int
    copied: Ranges


@dataclass
class Parts:
    """What was narrowed so far.

    values: the narrowed values, by the whole value and its columns. writes: the writes of K and V, by the id of the
    whole node. kv_heads: the heads of K and V that a layer of the cache has left, by its number. states: the state of
    a recurrent layer that is left, by its number; cuts: the columns whose state that is.
    """

    values: dict[tuple[Value, Ranges], Value] = field(default_factory=dict)
    writes: dict[int, Node] = field(default_factory=dict)
    kv_heads: dict[int, int] = field(default_factory=dict)
    states: dict[int, StateLayer] = field(default_factory=dict)
    cuts: dict[int, Ranges] = field(default_factory=dict)

    def copy(self) -> Parts:
        return Parts(
            dict(self.values), dict(self.writes), dict(self.kv_heads), dict(self.states), dict(self.cuts)
        )  # fmt: skip


class Narrowing:
    """Builds what one rank computes.

    rank, ranks: the number of the rank in its stage, and how many there are. rules: how operations are narrowed.
    nodes: the nodes of the last attempt, which the caller puts into the graph. products: the whole products whose
    columns the last attempt narrowed.
    """

    def __init__(self, graph: Graph, rules: Rules):
        self.graph, self.rules = graph, rules
        self.rank, self.ranks = graph.facts.tensor_rank, graph.facts.tensor_parallel
        self.kv_heads = [layer.kv_heads for layer in graph.facts.kv_layers]
        self.nodes: list[Node] = []
        self.products: list[Node] = []
        self.parts = Parts()
        self.row: Row | None = None
        self._heads: dict[Value, Heads | None] = {}

    def attempt(self, work: Callable[[], Value]) -> tuple[Value, list[Node]]:
        """Returns what `work` builds, and the new nodes. If it raises Undivided, nothing is as if it had begun."""
        before = self.parts.copy()
        self.nodes, self.products = [], []
        try:
            return work(), self.nodes
        except Undivided:
            self.parts = before
            raise

    # -- what the columns of a value are ------------------------------------------------------------------------------

    def own_columns(self, value: Value) -> Ranges:
        """Returns the columns of a value that this rank computes. Raises Undivided if there are fewer than ranks."""
        return (self.cuts(value)[self.rank],)

    def cuts(self, value: Value) -> list[Range]:
        """Returns the columns of a value that each rank computes. Raises Undivided if there are fewer than ranks."""
        columns, heads = int(value.shape[1]), self.heads_of(value)
        found = []
        for rank in range(self.ranks):
            if heads is None:
                own = cut_columns(columns, self.ranks, rank)
                if own is None:
                    raise Undivided(f"{columns} columns are fewer than the {self.ranks} ranks")
                found.append(own)
            else:
                (begin, end), _ = self.cut_of(heads.heads, heads.kv_heads, rank)
                found.append((begin * heads.width, end * heads.width))
        return found

    def cut_of(self, heads: int, kv_heads: int, rank: int | None = None) -> tuple[Range, Range]:
        """Returns the heads of q, and those of K and V, of a rank, by default this one. Raises Undivided."""
        found = cut_heads(heads, kv_heads, self.ranks, self.rank if rank is None else rank)
        if found is None:
            raise Undivided(f"{heads} heads in {kv_heads} groups cannot be shared by {self.ranks} ranks")
        return found

    def heads_of(self, value: Value) -> Heads | None:
        """Returns the heads that the columns of a value are; None if they are columns without such an order."""
        if value not in self._heads:
            node = value.node
            rule = None if node is None else self.rules.heads.get(node.op) or self.rules.heads.get(kind_of(node.op))
            self._heads[value] = None if rule is None or node is None else rule(self, node, value)
        return self._heads[value]

    def heads_in(self, value: Value, ranges: Ranges, heads: int) -> Range:
        """Returns which of the heads of a value these columns are. Raises Undivided if they cut a head in two."""
        size = int(value.shape[1]) // heads
        if len(ranges) != 1 or ranges[0][0] % size or ranges[0][1] % size:
            raise Undivided(f"{maker(value)} has heads of {size} columns, which do not end where ranks do")
        return ranges[0][0] // size, ranges[0][1] // size

    # -- building -----------------------------------------------------------------------------------------------------

    def narrow(self, value: Value, ranges: Ranges) -> Value:
        """Returns the value with only these columns. Raises Undivided."""
        ranges = joined(ranges)
        if value.rank != 2 or not isinstance(value.shape[1], int):
            raise Undivided(f"{maker(value)} does not make rows of columns")
        if ranges == ((0, value.shape[1]),):
            return value
        if (value, ranges) not in self.parts.values:
            node = value.producer
            rule = self.rules.of_ops.get(node.op) or self.rules.of_kinds.get(kind_of(node.op))
            if rule is None:
                raise Undivided(f"{maker(value)} needs all columns")
            self.parts.values[value, ranges] = rule(self, node, value, ranges)
        return self.parts.values[value, ranges]

    @contextmanager
    def narrowing_row(self, row: Row) -> Iterator[None]:
        """Says, while it lasts, that the row of a cache is narrowed: a norm inside asks which columns it counts."""
        before, self.row = self.row, row
        try:
            yield
        finally:
            self.row = before

    def emit(self, node: Node, inputs: Sequence[Value | None], attrs: dict[str, Any], op: str = "") -> list[Value]:
        """Adds a node like `node` with other operands and attributes."""
        op = op or node.op
        types = infer(op, inputs, attrs)
        new = make_node(self.graph, op, inputs, attrs, types, node.scope, node.outputs[0].name)
        self.nodes.append(new)
        return new.outputs

    def stored(self, value: Value, dim: int, ranges: Ranges) -> Value:
        """Returns a weight or a constant with only these elements of one dimension, in the order of the ranges."""
        source = value.producer
        shape = (*value.shape[:dim], width(ranges), *value.shape[dim + 1 :])
        if source.op == "weight":
            parts = [source.attrs["expr"].slice(dim, begin, end) for begin, end in ranges]
            attrs = {"expr": parts[0].concat(parts[1:], dim)}
        elif source.op == "constant" and isinstance(source.attrs["value"], np.ndarray):
            numbers = source.attrs["value"]
            parts = [numbers.take(range(begin, end), axis=dim) for begin, end in ranges]
            attrs = {"value": np.concatenate(parts, axis=dim)}
        else:
            raise Undivided(f"{maker(value)} is no weight and no array")
        new = make_node(self.graph, source.op, (), attrs, [(value.dtype, shape)], source.scope, value.name)
        self.nodes.append(new)
        return new.output

    def vector(self, value: Value, columns: int, ranges: Ranges) -> Value:
        """Returns an operand that is the same for all rows, for some of `columns` columns."""
        if value.rank == 0 or value.shape[-1] == 1:
            return value
        if kind_of(value.producer.op) == "elementwise" and value.shape[-1] == columns:
            operands = [None if v is None else self.vector(v, columns, ranges) for v in value.producer.inputs]
            return self.emit(value.producer, operands, dict(value.producer.attrs))[0]
        if value.shape[-1] != columns or not value.is_stored:
            raise Undivided(f"{maker(value)} does not follow the columns")
        return self.stored(value, value.rank - 1, ranges)


def maker(value: Value) -> str:
    """Returns the name of the operation that makes a value."""
    return value.producer.op


Rule = Callable[[Narrowing, Node, Value, Ranges], Value]
"""Returns the result of a node, one of its outputs, with only some columns. Raises Undivided."""
HeadsRule = Callable[[Narrowing, Node, Value], Heads | None]


@dataclass(frozen=True)
class Rules:
    """How operations are narrowed, by name and by kind, and which of them make heads, by name or by kind."""

    of_ops: Mapping[str, Rule]
    of_kinds: Mapping[str, Rule]
    heads: Mapping[str, HeadsRule]
