"""rewrite_gqa:  attention(q, repeat(k, G), repeat(v, G))  ->  attention(q, k, v)

S tokens, H = Hkv * G query heads, Hkv key-value heads, D head dim.  The repetition must give KV head h // G to query
head h, as attention with fewer KV heads does. Layers may share what is repeated.

[1, Hkv, S, D] -> [1, Hkv, 1, S, D] -> [1, Hkv, G, S, D] -> [1, H, S, D]
One KV head for all may also be a row of a linear: [1, S, D] -> [1, 1, 1, S, D] -> [1, 1, G, S, D] -> [1, H, S, D]
Or both repeat before k turns: rotary(repeat(k)) -> rotary(k), [1, S, Hkv, 1, D] -> [1, S, Hkv, G, D] -> [1, S, H, D]
"""

from __future__ import annotations

from tensorwright.ir import Graph, Value
from tensorwright.passes.rewriting.attention_vectors import vectors_of
from tensorwright.passes.rewriting.matcher import Match, apply, pattern
from tensorwright.passes.rewriting.rewriter import Rewriter

PATTERN = pattern(
    """
    k_column  = view(k)
    k_groups  = expand(k_column)
    k_heads   = view(k_groups)
    v_column  = view(v)
    v_groups  = expand(v_column)
    v_heads   = view(v_groups)
    k_rows    = transpose(k_heads, dim0=1, dim1=2)
    v_rows    = transpose(v_heads, dim0=1, dim1=2)
    out = attention(q, k_rows, v_rows, sinks?, slopes?)
""",
    shared=["k_heads", "v_heads"],
)

BEFORE_ROTARY = pattern("""
    k_groups  = expand(k_column)
    k_heads   = view(k_groups)
    v_groups  = expand(v_column)
    v_heads   = view(v_groups)
    out = attention(q, rotary?(k_heads, table, rotary_dim=rotary_dim), v_heads)
""")


def check(m: Match) -> None:
    m.bind_shape(m.q, "1 S H D")
    for source, column, groups, heads in (
        (m.k, m.k_column, m.k_groups, m.k_heads),
        (m.v, m.v_column, m.v_groups, m.v_heads),
    ):
        m.bind_shape(column, "1 Hkv 1 S D")
        m.bind_shape(source, "1 Hkv S D" if source.rank == 4 else "1 S D")
        m.require(source.rank == 4 or m.dims["Hkv"] == 1, "a row is no head", source)
        m.bind_shape(groups, "1 Hkv G S D")
        m.bind_shape(heads, "1 Hkv*G S D")
        m.bind_shape(heads, "1 H S D")


def check_before_rotary(m: Match) -> None:
    m.bind_shape(m.q, "1 S H D")
    for column, groups, heads in ((m.k_column, m.k_groups, m.k_heads), (m.v_column, m.v_groups, m.v_heads)):
        m.bind_shape(column, "1 S Hkv 1 D")
        m.bind_shape(groups, "1 S Hkv G D")
        m.bind_shape(heads, "1 S Hkv*G D")
        m.bind_shape(heads, "1 S H D")


def heads_of(g: Rewriter, x: Value) -> Value:
    """Returns [1, Hkv, S, D], or a row [1, S, D] that is one head, as [1, S, Hkv, D]."""
    if x.rank == 3:
        row: Value = g.view(x, shape=(*x.shape[:2], 1, x.shape[2]))
        return row
    heads: Value = g.transpose(x, dim0=1, dim1=2)
    return heads


def replace(m: Match, g: Rewriter) -> Value:
    k, v = (heads_of(g, x) for x in (m.k, m.v))
    out: Value = g.attention(m.q, k, v, *vectors_of(m), **m.root.attrs)
    return out


def replace_before_rotary(m: Match, g: Rewriter) -> Value:
    k, v = (g.view(x, shape=(1, *(m.dims[d] for d in ("S", "Hkv", "D")))) for x in (m.k_column, m.v_column))
    k = k if m.table is None else g.rotary(k, m.table, rotary_dim=m.rotary_dim)
    out: Value = g.attention(m.q, k, v, **m.root.attrs)
    return out


def rewrite_gqa(graph: Graph) -> int:
    return apply(graph, PATTERN, check, replace) + apply(
        graph, BEFORE_ROTARY, check_before_rotary, replace_before_rotary
    )
