"""fuse_latent_attention:  attention over K and V that come of one latent row per position  ->  latent_attention

S tokens, H heads, N + P columns of a head of q and k, L latent columns, O columns of a head of v.  With kv = [c | r],
q a row of a linear and W rows N + O for each head,

    up  = view(rms_norm(c) W^T as [1, S, H, N + O])
    out = attention([q_nope | rotary(q_rope)], [up[:N] | rotary(r)], up[N:])
        -> view(latent_attention(q, kv, norm, W[:, :N]^T, W[:, N:], table))

Where neighbours turn, the permutation of the columns that rotate moves into the rows of the weights of q and kv. Where
nothing rotates, q is whole heads and there is no table. Where the linear of q has more columns for each head, such as
those of a gate, q gets a linear of its own. Where r is normalised before it rotates, its rows are made apart. Where c
is scaled by a number s behind its norm, r / s and s times the scale of scores give the same scores, and s scales the
sum over V. A number that all of q is scaled by becomes a part of the scale of scores.
"""

from __future__ import annotations

import numpy as np

from tensorwright.ir import Graph, Value
from tensorwright.passes.recognise_interleaved_rotary import split_pairs
from tensorwright.passes.rewriting.matcher import Match, apply, pattern
from tensorwright.passes.rewriting.rewriter import Rewriter
from tensorwright.passes.split_interleaved_linears import take_rows
from tensorwright.plugins.paged_attention.attention import how_of

_ROWS = """
    q_whole  = view(q_row)
    q_heads  = slice?(q_whole, dim=-1, start=head_start, end=head_end, step=1)
    c_normed = rms_norm(slice(kv, dim=-1, start=0, end=latent, step=1), norm, eps=eps, weight_offset=offset)
    c        = mul?(c_normed, row_scale)
    r_row    = view(slice(kv, dim=-1, start=latent, end=kv_dim, step=1))
    r        = rms_norm?(r_row, r_norm, eps=r_eps, weight_offset=r_offset)
"""
_ROTATION = """
    q_turned = transpose(q_heads, dim0=1, dim1=2)
    q_nope   = mul?(slice(q_turned, dim=-1, start=0, end=inner, step=1), nope_scale)
    q_part   = mul?(slice(q_turned, dim=-1, start=inner, end=key_dim, step=1), part_scale)
    q_pairs  = index?(transpose(q_part, dim0=1, dim1=2), none_a?, none_b?, none_c?, q_order)
    q_spun   = index?(rotary(q_pairs, q_table, rotary_dim=rotary_dim), none_d?, none_e?, none_f?, q_back)
    q        = transpose(concat(q_nope, transpose(q_spun, dim0=1, dim1=2), dim=-1), dim0=1, dim1=2)
    r_pairs  = index?(transpose(r, dim0=1, dim1=2), none_g?, none_h?, none_i?, k_order)
    r_spun   = index?(rotary(r_pairs, k_table, rotary_dim=rotary_dim), none_j?, none_k?, none_l?, k_back)
    r_heads  = transpose(r_spun, dim0=1, dim1=2)
"""
_ATTENTION = """
    r_shared = expand?(r_heads)
    c_scaled = mul?(view(c), c_scale)
    up       = view(linear(c_scaled, up_weight))
    up_heads = transpose(up, dim0=1, dim1=2)
    k_nope   = slice(up_heads, dim=-1, start=0, end=inner, step=1)
    k        = concat(k_nope, r_shared, dim=-1)
    v        = slice(up_heads, dim=-1, start=inner, end=up_dim, step=1)
    out      = attention(q, transpose(k, dim0=1, dim1=2), transpose(v, dim0=1, dim1=2))
"""
PATTERN = pattern(_ROWS + _ROTATION + _ATTENTION, shared=["q_whole"])
UNROTATED = pattern(_ROWS + _ATTENTION.replace("(r_heads)", "(r)").replace("(q, ", "(q_heads, "), shared=["q_whole"])


def check(m: Match) -> None:
    check_unrotated(m)
    rotated = m.key_dim - m.inner
    m.require(m.key_dim == m.dims["D"] and m.rotary_dim == rotated, "not all of what q and k share rotates", m.q_part)
    m.require(scale_of(m, "nope_scale") == scale_of(m, "part_scale"), "the parts of q are scaled apart", m.q)
    m.require(same_table(m.q_table, m.k_table), "q and k turn by different tables", m.k_table)
    for name in "abcdefghijkl":
        m.require(getattr(m, f"none_{name}") is None, "more than the columns is permuted", m.q)
    check_order(m, int(rotated))


def check_unrotated(m: Match) -> None:
    heads = m.q_whole if m.q_heads is None else m.q_heads
    m.bind_shape(heads, "1 S H D")
    m.bind_shape(m.q_whole, "1 S H G")
    m.bind_shape(m.q_row, "1 S H*G")
    if m.q_heads is not None:
        require_weights(m, m.q_row)
    m.bind_shape(m.kv, "1 S W")
    m.bind_shape(m.up, "1 S H B")
    if m.r_norm is not None or factor_of(m) != 1.0:
        require_weights(m, m.kv)
        m.require(factor_of(m) > 0, "not scaled by a number above 0", m.c)
        m.require(m.r_norm is None or m.r_norm.node.op == "weight", "not a weight of the checkpoint", m.r_norm)
    shared = int(m.dims["D"]) - m.inner
    m.require(m.kv_dim - m.latent == shared and m.kv_dim == m.dims["W"] and m.up_dim == m.dims["B"],
              "the slices are not all of q, of the latent row, and of what comes of it", heads)  # fmt: skip
    m.require(m.up_weight.node.op == "weight", "not a weight of the checkpoint", m.up_weight)
    m.require(m.norm.is_stored, "not a weight of the checkpoint or a constant", m.norm)


def scale_of(m: Match, name: str) -> float:
    """Returns the number that a part is multiplied by; 1 where the pattern has no such part, or the graph no number."""
    value = m._bound.get(name)
    return 1.0 if value is None else float(m.scalar(value))


def factor_of(m: Match) -> float:
    """Returns the number that c is scaled by behind its norm, before or behind a view."""
    return scale_of(m, "row_scale") * scale_of(m, "c_scale")


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
        require_weights(m, row)


def require_weights(m: Match, row: Value) -> None:
    """Requires a linear of the checkpoint, whose columns can be taken and permuted in the rows of its weights."""
    m.require(row.producer.op == "linear", "what is cut or permuted is no row of a linear", row)
    for weight in row.producer.inputs[1:]:
        m.require(weight is None or weight.producer.op == "weight", "not a weight of the checkpoint", weight)


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
    q, kv = own_queries(m, g), m.kv
    if m.notes["permuted"]:
        q, kv = (permute_tail(g, row, count, m.rotary_dim) for row, count in ((q, int(m.dims["H"])), (kv, 1)))
    return absorb(m, g, q, kv, m.q_table)


def absorb(m: Match, g: Rewriter, q: Value, kv: Value, table: Value | None) -> Value:
    """Returns the attention over the rows `kv`, whose two up-projections are weights of their own."""
    heads, inner, latent, both = int(m.dims["H"]), m.inner, m.latent, m.up_dim
    weight, dtype = m.up_weight.producer, m.up_weight.dtype
    by_head = weight.attrs["expr"].reshape((heads, both, latent))
    up_k = g.weight(
        expr=by_head.slice(1, 0, inner).transpose(1, 2), type=(dtype, (heads, latent, inner)), scope=weight.scope
    )
    up_v = g.weight(expr=by_head.slice(1, inner, both), type=(dtype, (heads, both - inner, latent)), scope=weight.scope)
    attrs = how_of(m.root.attrs)
    factor = factor_of(m)
    attrs["scale"] *= factor * scale_of(m, "nope_scale")
    kv = changed_rows(m, g, kv, factor)
    rows = g.latent_attention(q, kv, m.norm, up_k, up_v, table, eps=m.eps, weight_offset=m.offset, **attrs)
    if factor != 1.0:
        rows = g.mul(rows, g.constant(factor, "float32"))
    out: Value = g.view(rows, shape=m.root.output.shape)
    return out


def changed_rows(m: Match, g: Rewriter, kv: Value, factor: float) -> Value:
    """Returns the rows [c | r] with r normalised, if the model does so, and divided by the factor of c."""
    if m.r_norm is None and factor == 1.0:
        return kv
    c, r = take_columns(g, kv, 1, 0, m.latent), take_columns(g, kv, 1, m.latent, m.kv_dim)
    if m.r_norm is not None:
        weight = permuted(g, m.r_norm, 1, m.kv_dim - m.latent) if m.notes.get("permuted") else m.r_norm
        r = g.rms_norm(r, weight, eps=m.r_eps, weight_offset=m.r_offset)
    if factor != 1.0:
        r = g.mul(r, g.constant(1.0 / factor, "float32"))
    rows: Value = g.concat(c, r, dim=2)
    return rows


def own_queries(m: Match, g: Rewriter) -> Value:
    """Returns the rows of q alone, of a linear that may have more columns for each head."""
    if m.q_heads is None:
        return m.q_row
    return take_columns(g, m.q_row, int(m.dims["H"]), m.head_start, m.head_end)


def take_columns(g: Rewriter, row: Value, heads: int, start: int, end: int) -> Value:
    """Returns the linear that gives columns [start, end) of each head alone."""
    x, *weights = row.producer.inputs
    shape = (heads, int(row.shape[-1]) // heads)
    out: Value = g.linear(x, *(w and take_rows(g, w, shape, 1, start, end) for w in weights), scope=row.producer.scope)
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
    return apply(graph, PATTERN, check, replace) + apply(
        graph, UNROTATED, check_unrotated, lambda m, g: absorb(m, g, own_queries(m, g), m.kv, None)
    )
