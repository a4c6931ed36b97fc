"""fuse_latent_attention:  attention over K and V that come of one latent row per position  ->  latent_attention

S tokens, H heads, N + P columns of a head of q and k, L latent columns, O columns of a head of v.  With kv = [c | r],
q a row of a linear and W rows N + O for each head,

    up  = view(rms_norm(c) W^T as [1, S, H, N + O])
    out = attention([q_nope | rotary(q_rope)], [up[:N] | rotary(r)], up[N:])
        -> view(latent_attention(q, kv, norm, W[:, :N]^T, W[:, N:], table))

Where neighbours turn, the permutation of the columns that rotate moves into the rows of the weights of q and kv.
"""

from __future__ import annotations

import numpy as np

from tensorwright.ir import Graph, Value
from tensorwright.passes.recognise_interleaved_rotary import split_pairs
from tensorwright.passes.rewriting.matcher import Match, apply, pattern
from tensorwright.passes.rewriting.rewriter import Rewriter

PATTERN = pattern("""
    q_heads  = view(q_row)
    q_turned = transpose(q_heads, dim0=1, dim1=2)
    q_nope   = slice(q_turned, dim=-1, start=0, end=inner, step=1)
    q_part   = slice(q_turned, dim=-1, start=inner, end=key_dim, step=1)
    q_pairs  = index?(transpose(q_part, dim0=1, dim1=2), none_a?, none_b?, none_c?, q_order)
    q_spun   = index?(rotary(q_pairs, q_table, rotary_dim=rotary_dim), none_d?, none_e?, none_f?, q_back)
    q        = concat(q_nope, transpose(q_spun, dim0=1, dim1=2), dim=-1)
    c        = rms_norm(slice(kv, dim=-1, start=0, end=latent, step=1), norm, eps=eps, weight_offset=offset)
    r        = view(slice(kv, dim=-1, start=latent, end=kv_dim, step=1))
    r_pairs  = index?(transpose(r, dim0=1, dim1=2), none_g?, none_h?, none_i?, k_order)
    r_spun   = index?(rotary(r_pairs, k_table, rotary_dim=rotary_dim), none_j?, none_k?, none_l?, k_back)
    r_shared = expand?(transpose(r_spun, dim0=1, dim1=2))
    up       = view(linear(view(c), up_weight))
    up_heads = transpose(up, dim0=1, dim1=2)
    k_nope   = slice(up_heads, dim=-1, start=0, end=inner, step=1)
    k        = concat(k_nope, r_shared, dim=-1)
    v        = slice(up_heads, dim=-1, start=inner, end=up_dim, step=1)
    out      = attention(transpose(q, dim0=1, dim1=2), transpose(k, dim0=1, dim1=2), transpose(v, dim0=1, dim1=2))
""")


def check(m: Match) -> None:
    m.bind_shape(m.q_heads, "1 S H D")
    m.bind_shape(m.q_row, "1 S H*D")
    m.bind_shape(m.kv, "1 S W")
    m.bind_shape(m.up, "1 S H B")
    m.require(m.key_dim == m.dims["D"] and m.kv_dim == m.dims["W"] and m.up_dim == m.dims["B"],
              "the slices are not all of q, of the latent row, and of what comes of it", m.q)  # fmt: skip
    rotated = m.key_dim - m.inner
    m.require(m.kv_dim - m.latent == rotated == m.rotary_dim, "not all of what q and k share rotates", m.q_part)
    m.require(m.up_weight.node.op == "weight", "not a weight of the checkpoint", m.up_weight)
    m.require(m.norm.is_stored, "not a weight of the checkpoint or a constant", m.norm)
    m.require(same_table(m.q_table, m.k_table), "q and k turn by different tables", m.k_table)
    for name in "abcdefghijkl":
        m.require(getattr(m, f"none_{name}") is None, "more than the columns is permuted", m.q)
    check_order(m, int(rotated))


def check_order(m: Match, rotated: int) -> None:
    """Requires that the columns that rotate have their own order in q and k, or evens before odds in both."""
    backs = [m.q_back, m.k_back]
    m.require((m.q_order is None) == (m.k_order is None), "only one of q and k is permuted", m.q)
    m.require((backs[0] is None) == (backs[1] is None), "only one of q and k is permuted back", m.q)
    m.notes["permuted"] = m.q_order is not None
    if m.q_order is None:
        m.require(backs[0] is None, "columns are permuted behind the rotation alone", m.q)
        return
    order = split_pairs(rotated, rotated)
    for value, wanted in ((m.q_order, order), (m.k_order, order), *((back, np.argsort(order)) for back in backs)):
        m.require(value is None or np.array_equal(value.constant, wanted), "not pairs split into halves", value)
    for row in (m.q_row, m.kv):
        linear = row.producer
        m.require(linear.op == "linear", "what is permuted is no row of a linear", row)
        for weight in linear.inputs[1:]:
            m.require(weight is None or weight.node.op == "weight", "not a weight of the checkpoint", weight)


def same_table(one: Value, other: Value) -> bool:
    """Returns whether two tables hold the same angles. Every rotary of a trace makes a table of its own."""
    if one is other:
        return True
    a, b = one.producer, other.producer
    return (
        a.op == b.op == "rotary_table"
        and a.operand(0) is b.operand(0)
        and a.attrs == b.attrs
        and np.array_equal(a.operand(1).constant, b.operand(1).constant)
    )


def replace(m: Match, g: Rewriter) -> Value:
    heads, inner, latent, both = int(m.dims["H"]), m.inner, m.latent, m.up_dim
    q, kv = m.q_row, m.kv
    if m.notes["permuted"]:
        q, kv = (permute_tail(g, row, count, m.rotary_dim) for row, count in ((q, heads), (kv, 1)))
    weight, dtype = m.up_weight.producer, m.up_weight.dtype
    by_head = weight.attrs["expr"].reshape((heads, both, latent))
    up_k = g.weight(
        expr=by_head.slice(1, 0, inner).transpose(1, 2), type=(dtype, (heads, latent, inner)), scope=weight.scope
    )
    up_v = g.weight(expr=by_head.slice(1, inner, both), type=(dtype, (heads, both - inner, latent)), scope=weight.scope)
    attrs = {name: m.root.attrs[name] for name in ("scale", "window", "softcap")}
    rows = g.latent_attention(q, kv, m.norm, up_k, up_v, m.q_table, eps=m.eps, weight_offset=m.offset, **attrs)
    out: Value = g.view(rows, shape=m.root.output.shape)
    return out


def permute_tail(g: Rewriter, row: Value, heads: int, rotated: int) -> Value:
    """Returns the linear whose last `rotated` rows of each head have the order evens, odds."""
    x, *weights = row.producer.inputs
    out: Value = g.linear(x, *(w and permuted(g, w, heads, rotated) for w in weights), scope=row.producer.scope)
    return out


def permuted(g: Rewriter, weight: Value, heads: int, rotated: int) -> Value:
    """Returns a weight or bias with the last rows of each head permuted: views, slices, a transpose and a concat."""
    shape = tuple(int(n) for n in weight.shape)
    size, rest = shape[0] // heads, shape[1:]
    by_head = weight.producer.attrs["expr"].reshape((heads, size, *rest))
    pairs = by_head.slice(1, size - rotated, size).reshape((heads, rotated // 2, 2, *rest))
    halves = pairs.transpose(1, 2).reshape((heads, rotated, *rest))
    whole = halves if rotated == size else by_head.slice(1, 0, size - rotated).concat([halves], 1)
    out: Value = g.weight(expr=whole.reshape(shape), type=(weight.dtype, shape), scope=weight.producer.scope)
    return out


def fuse_latent_attention(graph: Graph) -> int:
    return apply(graph, PATTERN, check, replace)
