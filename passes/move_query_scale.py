"""move_query_scale:  attention(view(row * c), k, v){scale}  ->  attention(view(row), k, v){scale * c}

    attention(q, rotary(k * c), v){scale}  ->  attention(q, rotary(k), v){scale * c}
    attention(rotary(transpose(q * c)), k, v){scale}  ->  attention(rotary(transpose(q)), k, v){scale * c}

S tokens, H heads, D head dim, c a number.  row: [1, S, H D], q = view(row * c): [1, S, H, D].  A score is
scale * (q . k), and (row * c) . k = c * (row . k), so the number moves from the row of q into the scale of the scores.
A rotation is linear, so a number moves out of k, and of the heads of q, in the same way.
"""

from __future__ import annotations

from tensorwright.ir import Graph, Value
from tensorwright.passes.rewriting.attention_vectors import vectors_of
from tensorwright.passes.rewriting.matcher import Match, apply, pattern
from tensorwright.passes.rewriting.rewriter import Rewriter

PATTERN = pattern("""
    scaled = mul(row, c)
    q      = view(scaled)
    out    = attention(q, k, v, sinks?, slopes?, scale=scale)
""")

QUERY = pattern("""
    scaled = mul(q, c)
    placed = transpose?(scaled, dim0=1, dim1=2)
    turned = rotary?(placed, table, rotary_dim=rotary_dim)
    out    = attention(turned, k, v, sinks?, slopes?, scale=scale)
""")
KEY = pattern("""
    scaled = mul(k, c)
    turned = rotary?(scaled, table, rotary_dim=rotary_dim)
    out    = attention(q, turned, v, sinks?, slopes?, scale=scale)
""")


def check(m: Match) -> None:
    m.bind_shape(m.q, "1 S H D")
    m.bind_shape(m.row, "1 S H*D")
    m.require(m.scalar(m.c) != 0, "q is multiplied by zero", m.c)


def replace(m: Match, g: Rewriter) -> Value:
    q = g.view(m.row, shape=m.q.shape)
    attrs = {**m.root.attrs, "scale": m.scale * m.scalar(m.c)}
    out: Value = g.attention(q, m.k, m.v, *vectors_of(m), **attrs)
    return out


def check_query(m: Match) -> None:
    m.require(m.scalar(m.c) != 0, "q is multiplied by zero", m.c)


def replace_query(m: Match, g: Rewriter) -> Value:
    q = m.q if m.placed is None else g.transpose(m.q, dim0=1, dim1=2)
    q = q if m.table is None else g.rotary(q, m.table, rotary_dim=m.rotary_dim)
    attrs = {**m.root.attrs, "scale": m.scale * m.scalar(m.c)}
    out: Value = g.attention(q, m.k, m.v, *vectors_of(m), **attrs)
    return out


def check_key(m: Match) -> None:
    m.require(m.scalar(m.c) != 0, "k is multiplied by zero", m.c)


def replace_key(m: Match, g: Rewriter) -> Value:
    k = m.k if m.table is None else g.rotary(m.k, m.table, rotary_dim=m.rotary_dim)
    attrs = {**m.root.attrs, "scale": m.scale * m.scalar(m.c)}
    out: Value = g.attention(m.q, k, m.v, *vectors_of(m), **attrs)
    return out


def move_query_scale(graph: Graph) -> int:
    return (
        apply(graph, PATTERN, check, replace)
        + apply(graph, QUERY, check_query, replace_query)
        + apply(graph, KEY, check_key, replace_key)
    )
