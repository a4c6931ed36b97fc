"""Builds the nodes of a replacement, and splices them into the graph."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tensorwright.ir import Dim, Graph, Node, Value
from tensorwright.ir.ops import infer

Types = Sequence[tuple[str, Sequence[Dim]]]


class Rewriter:
    """Collects the nodes that replace one match: `g.rms_norm(x, w, eps=...)` adds a node and returns its result.

    Result types are inferred from the op table. `type=` (dtype, shape) or `types=` (several) gives them where the table
    cannot (constants, lowered ops). An op with several results returns them as a tuple.
    """

    def __init__(self, graph: Graph, root: Node):
        self.graph = graph
        self.root = root
        self.nodes: list[Node] = []

    def __getattr__(self, op: str) -> Callable[..., Any]:
        if op.startswith("_"):
            raise AttributeError(op)
        return functools.partial(self.add, op)

    def add(
        self,
        op: str,
        *inputs: Value | None,
        type: tuple[str, Sequence[Dim]] | None = None,
        types: Types | None = None,
        scope: str | None = None,
        **attrs: Any,
    ) -> Any:
        """Adds one node. Returns its result, or a tuple of its results if there are several."""
        if types is None:
            types = [type] if type is not None else infer(op, inputs, attrs)
        scope = self.root.scope if scope is None else scope
        node = make_node(self.graph, op, inputs, attrs, types, scope)
        self.nodes.append(node)
        return node.outputs[0] if len(node.outputs) == 1 else tuple(node.outputs)

    def constant(self, value: Any, dtype: str, shape: Sequence[Dim] = ()) -> Value:
        """Adds a constant: a Python scalar for rank 0, else a numpy array."""
        result: Value = self.add("constant", type=(dtype, shape), value=value)
        return result


def make_node(
    graph: Graph,
    op: str,
    inputs: Iterable[Value | None],
    attrs: dict[str, Any],
    types: Types,
    scope: str,
    name: str = "",
) -> Node:
    """Makes a node that is not in the graph's list yet. Its results get new names like `name`, or else `op`."""
    outputs = [Value(graph.fresh_name(name or op), dtype, tuple(shape)) for dtype, shape in types]
    node = Node(op, list(inputs), attrs, outputs, scope)
    for value in outputs:
        value.node = node
    return node


def splice(graph: Graph, inserted: dict[int, list[Node]], forward: dict[Value, Value]) -> None:
    """Puts the nodes of `inserted` before the node with that id, and replaces forward's keys by its values in all uses.

    Then it drops dead nodes and restores the order of definitions, stably.
    """
    nodes: list[Node] = []
    for node in graph.nodes:
        nodes.extend(inserted.get(id(node), ()))
        nodes.append(node)
    final = {old: _follow(new, forward) for old, new in forward.items()}
    for node in nodes:
        if any(v in final for v in node.inputs if v is not None):
            node.inputs = [None if v is None else final.get(v, v) for v in node.inputs]
    graph.nodes = nodes
    graph.outputs = [final.get(v, v) for v in graph.outputs]
    graph.drop_dead()
    sort_nodes(graph)


def _follow(value: Value, forward: dict[Value, Value]) -> Value:
    while value in forward:
        value = forward[value]
    return value


def sort_nodes(graph: Graph) -> None:
    """Sorts definitions before uses. Nodes that are in order already stay in place."""
    placed: set[int] = set()
    ordered: list[Node] = []
    for start in graph.nodes:
        stack = [start]
        while stack:
            node = stack[-1]
            if id(node) in placed:
                stack.pop()
                continue
            waiting = [v.node for v in node.inputs if v is not None and v.node and id(v.node) not in placed]
            if waiting:
                stack.extend(reversed(waiting))
                continue
            stack.pop()
            placed.add(id(node))
            ordered.append(node)
    graph.nodes = ordered
