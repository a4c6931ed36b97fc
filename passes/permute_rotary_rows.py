"""permute_rotary_rows:  permutations of the columns of q and k  ->  permuted rows of the weights that make q and k

S tokens, C channels, H heads, D head dim, p a permutation of D.  Scores do not change when q and k are permuted alike:

    attention(index(q, p), index(k, p), v)           ->  attention(q, k, v)
    index(view(x W^T + b as [1, S, H, D]), p)        ->  view(x W'^T + b')      row h D + d of W' is row h D + p[d] of W
    index(norm(x, w, b), p)                          ->  norm(index(x, p), w[p], b[p])     layer_norm or rms_norm
"""

from __future__ import annotations

from math import prod

import numpy as np

from tensorwright.ir import Graph, Value
from tensorwright.passes.rewriting.matcher import Match, apply, pattern
from tensorwright.passes.rewriting.rewriter import Rewriter

SCORES = pattern("""
    q   = index(q_heads, a?, b?, c?, order)
    k   = index(k_heads, d?, e?, f?, order)
    out = attention(q, k, v)
""")
NORMED = tuple(
    pattern(f"""
    norm = {op}(heads, weight, bias?, eps=eps, weight_offset=offset)
    out  = index(norm, a?, b?, c?, order)
""")
    for op in ("layer_norm", "rms_norm")
)
PATTERN = pattern("""
    row   = linear(x, weight, bias?)
    heads = view(row)
    out   = index(heads, a?, b?, c?, order)
""")


def check_scores(m: Match) -> None:
    for name in "abcdef":
        m.require(getattr(m, name) is None, "more than the columns is permuted", m.q)
    m.bind_shape(m.q_heads, "1 S H D")
    check_order(m)


def check_order(m: Match) -> None:
    columns = m.order.constant
    m.require(isinstance(columns, np.ndarray), "the order of columns is not constant", m.order)
    size = m.dims["D"]
    m.require(np.array_equal(np.sort(columns), np.arange(size)), "not every column comes once", m.order)


def check(m: Match) -> None:
    for name in "abc":
        m.require(getattr(m, name) is None, "more than the columns is permuted", m.heads)
    m.bind_shape(m.heads, "1 S H D")
    m.bind_shape(m.row, "1 S H*D")
    check_order(m)
    for value in (m.weight, m.bias):
        m.require(value is None or value.node.op == "weight", "not a weight of the checkpoint", value)
    turned = pairs_split(m.order.constant)
    m.require(turned is not None, "the order of columns is not one of pairs split into halves", m.order)
    m.notes["rotary_dim"] = turned


def check_normed(m: Match) -> None:
    for name in "abc":
        m.require(getattr(m, name) is None, "more than the columns is permuted", m.heads)
    m.bind_shape(m.heads, "1 S H D")
    check_order(m)
    for value in (m.weight, m.bias):
        m.require(value is None or value.is_stored, "not a weight of the checkpoint", value)
    m.notes["rotary_dim"] = pairs_split(m.order.constant)
    m.require(m.notes["rotary_dim"] is not None, "the order of columns is not one of pairs split into halves", m.order)


def pairs_split(order: np.ndarray) -> int | None:
    """Returns how many of the first columns have the order evens, odds; None for another order."""
    size = len(order)
    for rotary_dim in range(2, size + 1, 2):
        columns = np.arange(size)
        if np.array_equal(order, np.r_[columns[0:rotary_dim:2], columns[1:rotary_dim:2], columns[rotary_dim:]]):
            return rotary_dim
    return None


def replace(m: Match, g: Rewriter) -> Value:
    heads, size, turned = int(m.dims["H"]), int(m.dims["D"]), m.notes["rotary_dim"]
    weight, bias = (None if v is None else permuted(g, v, heads, size, turned) for v in (m.weight, m.bias))
    row = g.linear(m.x, weight, bias, scope=m.row.node.scope)
    out: Value = g.view(row, shape=m.heads.shape)
    return out


def permute_first(m: Match, g: Rewriter) -> Value:
    size, turned = int(m.dims["D"]), m.notes["rotary_dim"]
    weights = [permuted(g, w, int(prod(w.shape)) // size, size, turned) for w in (m.weight, m.bias) if w]
    heads = g.index(m.heads, None, None, None, m.order)
    norm: Value = g.add(m.norm.producer.op, heads, *weights, eps=m.eps, weight_offset=m.offset)
    return norm


def permuted(g: Rewriter, value: Value, heads: int, size: int, turned: int) -> Value:
    """Returns the weight with each head's rows in the order evens, odds, rest: views, a transpose and a concat."""
    if value.constant is not None:
        order = np.r_[0:turned:2, 1:turned:2, turned:size]
        columns = np.asarray(value.constant).reshape(heads, size)[:, order]
        constant: Value = g.constant(columns.reshape(value.shape), value.dtype, value.shape)
        return constant
    expr, scope = value.producer.attrs["expr"], value.producer.scope
    shape = tuple(int(n) for n in value.shape)
    rest = () if prod(shape) == heads * size else shape[1:]
    by_head = expr.reshape((heads, size, *rest))
    pairs = by_head if turned == size else by_head.slice(1, 0, turned)
    halves = pairs.reshape((heads, turned // 2, 2, *rest)).transpose(1, 2).reshape((heads, turned, *rest))
    whole = halves if turned == size else halves.concat([by_head.slice(1, turned, size)], 1)
    out: Value = g.weight(expr=whole.reshape(shape), type=(value.dtype, value.shape), scope=scope)
    return out


def permute_rotary_rows(graph: Graph) -> int:
    """Returns how many weights of q and k were permuted: two in each layer."""
    apply(graph, SCORES, check_scores, lambda m, g: g.attention(m.q_heads, m.k_heads, m.v, **m.root.attrs))
    for normed in NORMED:
        apply(graph, normed, check_normed, permute_first)
    return apply(graph, PATTERN, check, replace)
