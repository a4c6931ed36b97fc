"""rewrite_gqa:  attention(q, repeat(k, G), repeat(v, G))  ->  attention(q, k, v)

S tokens, H = Hkv * G query heads, Hkv key-value heads, D head dim.  Repeating must give KV head h // G to query head h,
which is what fewer KV heads mean to attention. [1, Hkv, S, D] -> [1, Hkv, 1, S, D] -> [1, Hkv, G, S, D] -> [1, H, S, D]
"""

from __future__ import annotations

from tensorwright.builder.ir import Graph, Value
from tensorwright.passes.matcher import Match, apply, pattern
from tensorwright.passes.rewriter import Rewriter

PATTERN = pattern("""
    k_column  = view(k)
    k_groups  = expand(k_column)
    k_heads   = view(k_groups)
    v_column  = view(v)
    v_groups  = expand(v_column)
    v_heads   = view(v_groups)
    out = attention(q, transpose(k_heads, dim0=1, dim1=2), transpose(v_heads, dim0=1, dim1=2), sinks?)
""")


def check(m: Match) -> None:
    m.bind_shape(m.q, "1 S H D")
    for source, column, groups, heads in (
        (m.k, m.k_column, m.k_groups, m.k_heads),
        (m.v, m.v_column, m.v_groups, m.v_heads),
    ):
        m.bind_shape(source, "1 Hkv S D")
        m.bind_shape(column, "1 Hkv 1 S D")
        m.bind_shape(groups, "1 Hkv G S D")
        m.bind_shape(heads, "1 Hkv*G S D")
        m.bind_shape(heads, "1 H S D")


def replace(m: Match, g: Rewriter) -> Value:
    k, v = (g.transpose(x, dim0=1, dim1=2) for x in (m.k, m.v))
    out: Value = g.attention(m.q, k, v, *([] if m.sinks is None else [m.sinks]), **m.root.attrs)
    return out


def rewrite_gqa(graph: Graph) -> int:
    return apply(graph, PATTERN, check, replace)
