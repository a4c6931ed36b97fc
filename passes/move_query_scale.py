"""move_query_scale:  attention(view(row * c), k, v){scale}  ->  attention(view(row), k, v){scale * c}

S tokens, H heads, D head dim, c a number.  row: [1, S, H D], q = view(row * c): [1, S, H, D].  A score is
scale * (q . k), and (row * c) . k = c * (row . k), so the number moves from the row of q into the scale of the scores.
"""

from __future__ import annotations

from tensorwright.ir import Graph, Value
from tensorwright.passes.rewriting.matcher import Match, apply, pattern
from tensorwright.passes.rewriting.rewriter import Rewriter

PATTERN = pattern("""
    scaled = mul(row, c)
    q      = view(scaled)
    out    = attention(q, k, v, sinks?, scale=scale)
""")


def check(m: Match) -> None:
    m.bind_shape(m.q, "1 S H D")
    m.bind_shape(m.row, "1 S H*D")
    m.require(m.scalar(m.c) != 0, "q is multiplied by zero", m.c)


def replace(m: Match, g: Rewriter) -> Value:
    q = g.view(m.row, shape=m.q.shape)
    attrs = {**m.root.attrs, "scale": m.scale * m.scalar(m.c)}
    out: Value = g.attention(q, m.k, m.v, *([] if m.sinks is None else [m.sinks]), **attrs)
    return out


def move_query_scale(graph: Graph) -> int:
    return apply(graph, PATTERN, check, replace)
