"""shift_position_tables:  embedding(W, positions + c)  ->  embedding(W[c:], positions)

    index(T, positions + c)  ->  embedding(T[c:], positions)
    x + embedding(W, [[c]])  ->  x + W[c]        the same row for every position

S tokens, P positions, C channels, c a whole number, or 0.  positions: [1, S], an input of the graph.  W: [P + c, C], a
weight of the checkpoint, whose first c rows no position reads.  T: [P + c, C], a table that the model computes itself.
"""

from __future__ import annotations

import numpy as np

from tensorwright.ir import Graph, Value
from tensorwright.passes.rewriting.matcher import Match, apply, pattern
from tensorwright.passes.rewriting.rewriter import Rewriter

PATTERN = pattern("""
    rows = add(positions, c)
    out  = embedding(w, rows)
""", shared=["rows"])  # fmt: skip
INDEXED = pattern("out = index(w, view?(add?(positions, c)))")

SAME_ROW = pattern("out = add(x, embedding(w, row))", commute=True)


def check_same_row(m: Match) -> None:
    m.bind_shape(m.w, "N C")
    m.bind_shape(m.row, "1 1")
    m.bind_shape(m.x, "1 S C")
    m.require(m.w.node is not None and m.w.node.op == "weight", "not a weight of the checkpoint", m.w)
    m.require(m.row.constant is not None, "the row is not a constant", m.row)
    m.require(0 <= int(np.ravel(m.row.constant)[0]) < int(m.dims["N"]), "the row is not in the table", m.row)


def add_row(m: Match, g: Rewriter) -> Value:
    row, width = int(np.ravel(m.row.constant)[0]), int(m.dims["C"])
    expr = m.w.producer.attrs["expr"].slice(0, row, row + 1).reshape([width])
    out: Value = g.add("add", m.x, g.weight(expr=expr, type=(m.w.dtype, (width,)), scope=m.w.producer.scope))
    return out


def check(m: Match) -> None:
    m.bind_shape(m.w, "N C")
    m.bind_shape(m.positions, "1 S")
    m.require(m.w.node is not None and m.w.node.op == "weight", "not a weight of the checkpoint", m.w)
    m.require(m.positions.node.op == "input", "the positions are not an input of the graph", m.positions)
    check_offset(m)


def check_indexed(m: Match) -> None:
    m.bind_shape(m.w, "N C")
    m.bind_shape(m.positions, "1 S")
    m.bind_shape(m.out, "S C" if m.out.rank == 2 else "1 S C")
    m.require(isinstance(m.w.constant, np.ndarray) and m.w.dtype == "float32", "no table of float32", m.w)
    m.require(m.positions.node is not None and m.positions.node.op == "input", "no input of the graph", m.positions)
    if m.c is not None:
        check_offset(m)


def check_offset(m: Match) -> None:
    offset = m.scalar(m.c)
    m.require(offset == int(offset) and 0 < offset < int(m.dims["N"]), "the offset is not within the table", m.c)


def replace(m: Match, g: Rewriter) -> Value:
    offset, rows = int(m.scalar(m.c)), int(m.dims["N"])
    kind = (m.w.dtype, (rows - offset, m.dims["C"]))
    table = g.weight(expr=m.w.producer.attrs["expr"].slice(0, offset, rows), type=kind, scope=m.w.producer.scope)
    out: Value = g.embedding(table, m.positions, **m.root.attrs)
    return out


def read_table(m: Match, g: Rewriter) -> Value:
    rows = np.ascontiguousarray(m.w.constant[0 if m.c is None else int(m.scalar(m.c)) :])
    table = g.constant(rows, m.w.dtype, rows.shape)
    out: Value = g.view(g.embedding(table, m.positions), shape=m.out.shape)
    return out


def shift_position_tables(graph: Graph) -> int:
    return (
        apply(graph, PATTERN, check, replace)
        + apply(graph, INDEXED, check_indexed, read_table)
        + apply(graph, SAME_ROW, check_same_row, add_row)
    )
