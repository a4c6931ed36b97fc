"""Defines the graph that passes rewrite and emitters read: typed static single assignment in one block.

A dimension is an int or a string: a symbol ("seq", "tokens", "seqs", "pages") or an expression over one ("seq + 1").
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensorwright.errors import GraphError
from tensorwright.ir.facts import Facts

Dim = int | str
Shape = tuple[Dim, ...]

DTYPES = ("float32", "bfloat16", "float16", "float64", "int64", "int32", "int8", "bool", "kv", "state")
"""Element types. "kv" is one attention layer's KV cache, and "state" the states that a recurrent layer keeps for all
sequences: rank-0 values that order writes before reads."""
CACHES = ("kv", "state")
"""The element types of what lasts from step to step. Such a value has no elements, and no place in an arena."""

STORED = ("weight", "constant")
"""The operations whose results an engine stores."""
SOURCES = ("input", *STORED)
"""The operations that compute nothing."""


@dataclass(eq=False)
class Value:
    """One result of one node. Values are compared by identity. `name` is unique in its graph and prints as %name."""

    name: str
    dtype: str
    shape: Shape
    node: Node | None = field(default=None, repr=False)

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def producer(self) -> Node:
        """The node that makes this value. Raises GraphError for a value that no node makes."""
        if self.node is None:
            raise GraphError(f"%{self.name} is made by no node")
        return self.node

    @property
    def is_cache(self) -> bool:
        """Whether this is a KV cache or the states of a recurrent layer."""
        return self.dtype in CACHES

    @property
    def is_stored(self) -> bool:
        """Whether this is a weight or a constant."""
        return self.node is not None and self.node.op in STORED

    @property
    def constant(self) -> Any:
        """The Python scalar or numpy array of the constant node that makes this value, else None."""
        if self.node is not None and self.node.op == "constant":
            return self.node.attrs["value"]
        return None

    @property
    def is_scalar_constant(self) -> bool:
        return self.rank == 0 and self.node is not None and self.node.op == "constant"


@dataclass(eq=False)
class Node:
    """One operation. `inputs` holds None for an absent optional operand. `scope` is the path of the module that the
    operation came from."""

    op: str
    inputs: list[Value | None]
    attrs: dict[str, Any]
    outputs: list[Value]
    scope: str = ""

    def operand(self, index: int) -> Value:
        """Returns the operand at `index`. Raises GraphError if it is absent."""
        value = self.optional(index)
        if value is None:
            raise GraphError(f"{self.op} has no operand {index}")
        return value

    def optional(self, index: int) -> Value | None:
        """Returns the operand at `index`, or None if it is absent."""
        return self.inputs[index] if index < len(self.inputs) else None

    @property
    def output(self) -> Value:
        """The only result. Raises GraphError if the node has several."""
        if len(self.outputs) != 1:
            raise GraphError(f"{self.op} has {len(self.outputs)} results, not one")
        return self.outputs[0]


class Graph:
    """An ordered list of nodes between named inputs and outputs, at a named stage.

    Inputs are nodes of op "input"; weights are nodes of op "weight" whose attrs["expr"] is a
    `tensorwright.ir.weights.WeightExpr`; constants are nodes of op "constant" with attrs["value"].
    """

    def __init__(self, name: str, stage: str = "traced"):
        self.name = name
        self.stage = stage
        self.nodes: list[Node] = []
        self.outputs: list[Value] = []
        self.facts = Facts()
        self._names: set[str] = set()
        self._counter = 0

    # -- building -------------------------------------------------------------------------------------------------

    def fresh_name(self, hint: str = "") -> str:
        """Returns a value name that is not in use: `hint` itself if it is free, else `hint` with a number."""
        if hint and hint not in self._names:
            self._names.add(hint)
            return hint
        while True:
            self._counter += 1
            name = f"{hint}.{self._counter}" if hint else str(self._counter)
            if name not in self._names:
                self._names.add(name)
                return name

    def restart_names(self) -> None:
        """Lets numbers in new names follow the largest in use, so that a graph read from text gets the same names."""
        self._names = {value.name for value in self.values()}
        ends = [name.rpartition(".")[2] for name in self._names]
        self._counter = max((int(end) for end in ends if end.isascii() and end.isdigit()), default=0)

    def add(
        self,
        op: str,
        inputs: Sequence[Value | None] = (),
        attrs: dict[str, Any] | None = None,
        types: Sequence[tuple[str, Sequence[Dim]]] = (),
        *,
        scope: str = "",
        names: Sequence[str] = (),
        before: Node | None = None,
    ) -> Node:
        """Appends a node, or inserts it right before `before`. `types` has (dtype, shape) of every result."""
        hints = list(names) + [""] * (len(types) - len(names))
        outputs = [Value(self.fresh_name(h), d, tuple(s)) for (d, s), h in zip(types, hints, strict=True)]
        node = Node(op, list(inputs), dict(attrs or {}), outputs, scope)
        for value in outputs:
            value.node = node
        if before is None:
            self.nodes.append(node)
        else:
            self.nodes.insert(self._index(before), node)
        return node

    def constant(self, value: Any, dtype: str, shape: Sequence[Dim] = (), *, before: Node | None = None) -> Value:
        return self.add("constant", (), {"value": value}, [(dtype, shape)], before=before).output

    # -- reading --------------------------------------------------------------------------------------------------

    @property
    def inputs(self) -> list[Value]:
        return [n.output for n in self.nodes if n.op == "input"]

    def find(self, op: str) -> list[Node]:
        return [n for n in self.nodes if n.op == op]

    def value(self, name: str) -> Value:
        for v in self.values():
            if v.name == name:
                return v
        raise GraphError(f"no value %{name} in graph {self.name}")

    def values(self) -> Iterator[Value]:
        for node in self.nodes:
            yield from node.outputs

    def users(self) -> dict[Value, list[Node]]:
        """Returns every value's consumers, in order, each once. The table is computed at every call, and is valid only
        until the graph changes."""
        table: dict[Value, list[Node]] = {v: [] for v in self.values()}
        for node in self.nodes:
            for value in dict.fromkeys(v for v in node.inputs if v is not None):
                table[value].append(node)
        return table

    # -- changing -------------------------------------------------------------------------------------------------

    def replace_uses(self, old: Value, new: Value) -> None:
        """Replaces `old` by `new` in the inputs of all nodes and in the graph's outputs."""
        for node in self.nodes:
            if old in node.inputs:
                node.inputs = [new if v is old else v for v in node.inputs]
        self.outputs = [new if v is old else v for v in self.outputs]

    def drop_dead(self) -> int:
        """Removes nodes that no output depends on, except graph inputs. Returns the number of removed nodes."""
        live: set[Value] = set(self.outputs)
        kept: list[Node] = []
        for node in reversed(self.nodes):
            if node.op == "input" or any(v in live for v in node.outputs):
                kept.append(node)
                live.update(v for v in node.inputs if v is not None)
        dropped = len(self.nodes) - len(kept)
        self.nodes = kept[::-1]
        return dropped

    def clone(self) -> Graph:
        """Returns a copy that shares weight expressions and constant arrays, but nothing that a pass changes."""
        other = Graph(self.name, self.stage)
        other.facts = self.facts.copy()
        other._names = set(self._names)
        other._counter = self._counter
        moved: dict[Value, Value] = {}
        for node in self.nodes:
            twin = Node(
                node.op,
                [None if v is None else moved[v] for v in node.inputs],
                dict(node.attrs),
                [Value(v.name, v.dtype, v.shape) for v in node.outputs],
                node.scope,
            )
            for old, new in zip(node.outputs, twin.outputs, strict=True):
                new.node = twin
                moved[old] = new
            other.nodes.append(twin)
        other.outputs = [moved[v] for v in self.outputs]
        return other

    def _index(self, node: Node) -> int:
        for i, candidate in enumerate(self.nodes):
            if candidate is node:
                return i
        raise GraphError(f"{node.op} is not in graph {self.name}")
