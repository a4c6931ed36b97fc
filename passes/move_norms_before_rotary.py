"""move_norms_before_rotary:  rms_norm(rotary(x), w) of q and k  ->  rotary(rms_norm(x, 1)), and both weights times q

S tokens, H heads, Hkv key-value heads, D head dim.  q: [1, S, H, D], k: [1, S, Hkv, D], weights a and b: [D].

A rotation R keeps the length of a head, so the root of the mean of squares is that of the head before it:

    rms_norm(R x, w) = w * R x / rms(R x) = w * R (x / rms(x)) = w * R rms_norm(x, 1)

The weights do not commute with a rotation, which mixes two columns, but a score is a sum over columns:

    sum_i (a_i (R q)_i) (b_i (R k)_i)  =  sum_i ((R q)_i a_i b_i) (R k)_i

So the cache holds k without its weight, and q takes both:

    attention(rms_norm(rotary(q), a), rms_norm(rotary(k), b), v)
        ->  attention((rotary(rms_norm(q, 1)) * a) * b, rotary(rms_norm(k, 1)), v)

Norms without weights, which have constants of ones, need no products. Only these may stand behind a permutation of
the columns, as one that puts neighbours back to their places. The table must not scale: that would change the length.
"""

from __future__ import annotations

import numpy as np

from tensorwright.ir import Graph, Value
from tensorwright.passes.rewriting.attention_vectors import vectors_of
from tensorwright.passes.rewriting.matcher import Match, apply, pattern
from tensorwright.passes.rewriting.rewriter import Rewriter

PATTERN = pattern("""
    q_turned = rotary(q, table, rotary_dim=rotary_dim)
    k_turned = rotary(k, table, rotary_dim=rotary_dim)
    q_heads  = rms_norm(q_turned, q_weight, eps=q_eps, weight_offset=0.0)
    k_heads  = rms_norm(k_turned, k_weight, eps=k_eps, weight_offset=0.0)
    out      = attention(q_heads, k_heads, v, sinks?, slopes?)
""")

PERMUTED = pattern("""
    q_turned = rotary(q, table, rotary_dim=rotary_dim)
    k_turned = rotary(k, table, rotary_dim=rotary_dim)
    q_placed = index(q_turned, a?, b?, c?, order)
    k_placed = index(k_turned, d?, e?, f?, order)
    q_heads  = rms_norm(q_placed, q_weight, eps=q_eps, weight_offset=0.0)
    k_heads  = rms_norm(k_placed, k_weight, eps=k_eps, weight_offset=0.0)
    out      = attention(q_heads, k_heads, v, sinks?)
""")


def check(m: Match) -> None:
    m.bind_shape(m.q, "1 S H D")
    m.bind_shape(m.k, "1 S Hkv D")
    for weight in (m.q_weight, m.k_weight):
        m.bind_shape(weight, "D")
    scale = m.table.producer.attrs.get("scale") if m.table.producer.op == "rotary_table" else None
    m.require(scale == 1.0, "the table does not keep the length of a head", m.table)


def check_permuted(m: Match) -> None:
    check(m)
    for name in "abcdef":
        m.require(getattr(m, name) is None, "more than the columns is permuted", m.q)
    for weight in (m.q_weight, m.k_weight):
        m.require(is_one(weight), "the norm behind a permutation has a weight", weight)


def normed_first(m: Match, g: Rewriter) -> tuple[Value, Value]:
    """Returns q and k, which are first divided by their length and then turned."""
    size = int(m.dims["D"])
    ones = g.constant(np.ones(size, np.float32), "float32", [size])
    q, k = (
        g.rotary(g.rms_norm(x, ones, eps=eps, weight_offset=0.0), m.table, rotary_dim=m.rotary_dim)
        for x, eps in ((m.q, m.q_eps), (m.k, m.k_eps))
    )
    return q, k


def replace_permuted(m: Match, g: Rewriter) -> Value:
    q, k = (g.index(x, None, None, None, m.order) for x in normed_first(m, g))
    out: Value = g.attention(q, k, m.v, *([] if m.sinks is None else [m.sinks]), **m.root.attrs)
    return out


def replace(m: Match, g: Rewriter) -> Value:
    q, k = normed_first(m, g)
    if not (is_one(m.q_weight) and is_one(m.k_weight)):
        q = g.mul(g.mul(q, m.q_weight), m.k_weight)
    out: Value = g.attention(q, k, m.v, *vectors_of(m), **m.root.attrs)
    return out


def is_one(weight: Value) -> bool:
    """Returns whether a norm's weight is a constant of ones."""
    return weight.constant is not None and bool(np.all(np.asarray(weight.constant) == 1.0))


def move_norms_before_rotary(graph: Graph) -> int:
    """Returns how many attentions had such norms."""
    return apply(graph, PATTERN, check, replace) + apply(graph, PERMUTED, check_permuted, replace_permuted)
