"""fuse_qkv:  q, k, v = x Wq^T + bq, x Wk^T + bk, x Wv^T + bv of one attention  ->  slices of one linear

Where the values are the keys, but for their norms, the rows of Wk come once more as those of Wv.
S tokens, C channels, H query heads, Hkv key-value heads, D head dim.  x: [1, S, C]; the fused weight is
[(H + 2 Hkv) D, C], in the order q, k, v.
"""

from __future__ import annotations

from tensorwright.ir import Graph, Value
from tensorwright.passes.rewriting.join_weights import join_weights, shared_scope, slice_columns
from tensorwright.passes.rewriting.matcher import Match, apply, pattern
from tensorwright.passes.rewriting.rewriter import Rewriter

_ATTENTION = """
    q = linear(x, q_weight, q_bias?)
    k = linear(x, k_weight, k_bias?)
    v = linear(x, v_weight, v_bias?)
    q_rows = view(rms_norm?(q, q_row_norm))
    k_rows = view(rms_norm?(k, k_row_norm))
    q_heads = rotary?(either(layer_norm(q_rows, q_scale, q_shift?), rms_norm?(q_rows, q_norm)), table)
    k_layer = layer_norm(k_rows, k_scale, k_shift?)
    k_rms = rms_norm?(k_rows, k_norm)
    k_heads = rotary?(either(k_layer, k_rms), table)
    v_rows = view(v)
    v_heads = rms_norm?(v_rows, v_norm)
    out = attention(q_heads, k_heads, v_heads, sinks?, slopes?)
"""
_KEPT = ["k_rows", "k_layer", "k_rms", "k_heads", "v_rows", "v_heads"]
"""Values that other layers may read, which have no keys and values of their own."""

PATTERN = pattern(_ATTENTION, outputs=["q", "k", "v"], shared=_KEPT)
GAINED = pattern(
    _ATTENTION.replace("attention(q_heads,", "attention(mul(mul(q_heads, q_gain), k_gain),"),
    outputs=["q", "k", "v"],
    shared=_KEPT,
)
GROWN = pattern(
    _ATTENTION.replace("attention(q_heads,", "attention(mul(q_heads, growth),"),
    outputs=["q", "k", "v"],
    shared=_KEPT,
)
KEYS_AS_VALUES = pattern(
    """
    rows = linear(x, w, b?)
    heads = view(rows)
    k_rms = rms_norm?(heads, k_norm)
    k_heads = rotary?(k_rms, table)
    v_heads = rms_norm(heads, v_norm)
    out = attention(q, k_heads, v_heads, sinks?, slopes?)
    """,
    outputs=["v_heads"],
    shared=["rows", "heads", "k_rms", "k_heads"],
)
"""Values that are the keys, but for their norms."""


def check(m: Match) -> None:
    m.bind_shape(m.x, "1 S C")
    biases = [m.q_bias, m.k_bias, m.v_bias]
    m.require(len({b is None for b in biases}) == 1, "only some of q, k and v have a bias", m.q)
    for value in (m.q_weight, m.k_weight, m.v_weight, *biases):
        m.require(value is None or value.node.op == "weight", "not a weight of the checkpoint", value)


def replace(m: Match, g: Rewriter) -> tuple[Value, ...]:
    weights = [m.q_weight, m.k_weight, m.v_weight]
    scope = shared_scope([m.q, m.k, m.v])
    weight = join_weights(g, weights, scope)
    bias = join_weights(g, [m.q_bias, m.k_bias, m.v_bias], scope) if m.q_bias is not None else None
    qkv = g.linear(m.x, weight, bias, scope=scope)
    return tuple(slice_columns(g, qkv, [w.shape[0] for w in weights]))


def give_values_a_linear(m: Match, g: Rewriter) -> Value:
    rows = g.linear(m.x, m.w, m.b, scope=m.rows.node.scope)
    norm: Value = g.rms_norm(g.view(rows, shape=m.heads.shape), m.v_norm, **m.v_heads.node.attrs)
    return norm


def fuse_qkv(graph: Graph) -> int:
    apply(graph, KEYS_AS_VALUES, None, give_values_a_linear)
    return sum(apply(graph, form, check, replace) for form in (PATTERN, GAINED, GROWN))
