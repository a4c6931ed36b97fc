"""fold_token_maps:  embedding(W, f(token ids))  ->  embedding(W[f(0 .. N - 1)], token ids)

S tokens, N rows, C channels.  W: [N, C], a weight of the checkpoint.  f: arithmetic of each token id alone, such as a 0
in place of the id that stands for an image.  The new table has the rows that f picks, as runs of rows of W.
"""

from __future__ import annotations

import numpy as np

from tensorwright.ir import Graph, Node, Value
from tensorwright.ir.ops import ELEMENTWISE
from tensorwright.passes.recognise_masks import INTEGERS, cone, evaluate
from tensorwright.passes.rewriting.matcher import Match, apply, pattern
from tensorwright.passes.rewriting.rewriter import Rewriter

PATTERN = pattern("out = embedding(w, ids)")

MAX_RUNS = 64
"""The most runs of rows of a new table. A map with more is no exception for some tokens."""


def check(m: Match) -> None:
    m.bind_shape(m.w, "N C")
    m.bind_shape(m.ids, "1 S")
    m.require(m.w.node is not None and m.w.node.op == "weight", "not a weight of the checkpoint", m.w)
    nodes = cone(m.ids)
    m.require(m.ids.producer.op != "input", "nothing is computed of the ids", m.ids)
    m.require(any(is_tokens(node) for node in nodes), "it is not computed of token ids", m.ids)
    for node in nodes:
        m.require(is_by_token(node, m.ids), "it is not computed of each token id alone", node.outputs[0])


def is_tokens(node: Node) -> bool:
    return node.op == "input" and node.output.dtype in INTEGERS and "position" not in node.output.name


def is_by_token(node: Node, ids: Value) -> bool:
    scalar = node.op == "constant" and node.output.is_scalar_constant
    return is_tokens(node) or scalar or (node.op in ELEMENTWISE and node.output.shape in (ids.shape, ()))


def runs_of(rows: np.ndarray) -> list[tuple[int, int]]:
    """Returns the runs [start, end) of neighbours that follow each other in `rows`."""
    cuts = np.flatnonzero(np.diff(rows) != 1) + 1
    return [(int(run[0]), int(run[-1]) + 1) for run in np.split(rows, cuts)]


def check_rows(m: Match, graph: Graph) -> None:
    """Notes the runs of rows that the ids 0 .. N - 1 read."""
    check(m)
    count = int(m.dims["N"])
    rows = evaluate(graph, m.ids, count).ravel()
    m.require(((rows >= 0) & (rows < count)).all(), "it leaves the table", m.ids)
    m.notes["runs"] = runs_of(rows)
    m.require(len(m.notes["runs"]) <= MAX_RUNS, "it has too many runs of rows", m.ids)


def replace(m: Match, g: Rewriter) -> Value:
    expr = m.w.producer.attrs["expr"]
    parts = [expr.slice(0, start, end) for start, end in m.notes["runs"]]
    whole = expr if len(parts) == 1 else parts[0].concat(parts[1:], 0)
    table = g.weight(expr=whole, type=(m.w.dtype, m.w.shape), scope=m.w.producer.scope)
    tokens = next(node.output for node in cone(m.ids) if is_tokens(node))
    out: Value = g.embedding(table, tokens, **m.root.attrs)
    return out


def fold_token_maps(graph: Graph) -> int:
    return apply(graph, PATTERN, lambda m: check_rows(m, graph), replace)
