"""canonicalise_rows:  op(view(x, [S, C]), ...)  ->  view(op(x, ...), [S, C])  for every op that treats rows alone

A model that flattens its rows for a mixture of experts computes more of it on [S, C]: the expert that all tokens take,
its gate, sums. Every other pass knows [1, S, C].

S tokens, C columns.  x: [1, S, C].  An operand without rows (a number, a vector) stays.
"""

from __future__ import annotations

from tensorwright.ir import Graph, Node, Value
from tensorwright.ir import dims as dim_math
from tensorwright.ir.ops import find_spec
from tensorwright.passes.rewriting.rewriter import Rewriter, splice

ALONG_COLUMNS = ("slice", "concat")
"""Ops that treat rows alone where their dimension is that of the columns."""


def canonicalise_rows(graph: Graph) -> int:
    """Returns how many ops were moved before a view."""
    lifted: dict[Value, Value] = {}
    inserted: dict[int, list[Node]] = {}
    forward: dict[Value, Value] = {}
    for node in graph.nodes:
        if not treats_rows_alone(node) or not any(rows_of(v, lifted) is not None for v in node.inputs):
            continue
        g = Rewriter(graph, node)
        attrs = {**node.attrs, "dim": 2} if node.op in ALONG_COLUMNS else node.attrs
        out = g.add(node.op, *(lift(g, v, node, lifted) for v in node.inputs), **attrs)
        lifted[node.output] = out
        forward[node.output] = g.view(out, shape=node.output.shape)
        inserted[id(node)] = g.nodes
    if inserted:
        splice(graph, inserted, forward)
    return len(inserted)


def treats_rows_alone(node: Node) -> bool:
    """Returns whether a node computes [S, C] of flattened rows, each row alone."""
    if len(node.outputs) != 1 or node.output.rank != 2 or not isinstance(node.output.shape[1], int):
        return False
    if isinstance(node.output.shape[0], int):
        return False
    spec = find_spec(node.op, "fused")
    return (node.op in ALONG_COLUMNS and node.attrs["dim"] == 1) or (spec is not None and spec.per_token)


def rows_of(value: Value | None, lifted: dict[Value, Value]) -> Value | None:
    """Returns the value [1, S, C] that `value` is a view of; None if there is none."""
    if value is None or value.rank != 2:
        return None
    if value in lifted:
        return lifted[value]
    node = value.node
    source = node.operand(0) if node is not None and node.op == "view" else None
    wanted = (1, *value.shape)
    fits = source is not None and source.rank == 3 and all(map(dim_math.same, source.shape, wanted))
    return source if fits else None


def lift(g: Rewriter, value: Value | None, node: Node, lifted: dict[Value, Value]) -> Value | None:
    """Returns an operand with the batch as its first dimension, if it has rows."""
    rows = rows_of(value, lifted)
    if rows is not None or value is None or value.rank != 2 or value.is_stored:
        return rows if rows is not None else value
    out: Value = g.view(value, shape=(1, *value.shape))
    return out
