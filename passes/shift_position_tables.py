"""shift_position_tables:  embedding(W, positions + c)  ->  embedding(W[c:], positions)

S tokens, P positions, C channels, c a whole number.  positions: [1, S], an input of the graph.  W: [P + c, C], a weight
of the checkpoint, whose first c rows no position reads.
"""

from __future__ import annotations

from tensorwright.ir import Graph, Value
from tensorwright.passes.rewriting.matcher import Match, apply, pattern
from tensorwright.passes.rewriting.rewriter import Rewriter

PATTERN = pattern("""
    rows = add(positions, c)
    out  = embedding(w, rows)
""", shared=["rows"])  # fmt: skip


def check(m: Match) -> None:
    m.bind_shape(m.w, "N C")
    m.bind_shape(m.positions, "1 S")
    m.require(m.w.node is not None and m.w.node.op == "weight", "not a weight of the checkpoint", m.w)
    m.require(m.positions.node.op == "input", "the positions are not an input of the graph", m.positions)
    offset = m.scalar(m.c)
    m.require(offset == int(offset) and 0 < offset < int(m.dims["N"]), "the offset is not within the table", m.c)


def replace(m: Match, g: Rewriter) -> Value:
    offset, rows = int(m.scalar(m.c)), int(m.dims["N"])
    kind = (m.w.dtype, (rows - offset, m.dims["C"]))
    table = g.weight(expr=m.w.producer.attrs["expr"].slice(0, offset, rows), type=kind, scope=m.w.producer.scope)
    out: Value = g.embedding(table, m.positions, **m.root.attrs)
    return out


def shift_position_tables(graph: Graph) -> int:
    return apply(graph, PATTERN, check, replace)
