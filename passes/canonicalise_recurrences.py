"""canonicalise_recurrences:  recurrences on [1, S, C], with weights as operands

    slice(transpose(x), dim=1)       ->  transpose(slice(x, dim=2))
    mul(transpose(x), transpose(y))  ->  transpose(mul(x, y)), and with a number in place of y likewise
    slice(mul(x, v))                 ->  mul(slice(x), v'), v a constant [1, 1, C] and v' its part [C']
    add(x, view(W))                  ->  add(x, W'), a view [1, 1, C] and W' [C]
    delta_rule(repeat(q), repeat(k)) ->  delta_rule(q, k), which has fewer heads of keys
    view(W)                          ->  W', a weight of another shape
    where(x > 20, x, log(1 + exp(x)))  ->  softplus(x)
    products of heads, each by a matrix of its own, and their biases  ->  add(head_products(x, W'), b')

S tokens, C channels, H heads, K columns of a head of x, N of a head of the product.  x, y: [1, S, C].  transformers
convolves [1, C, S]; canonicalise_shapes then removes pairs of transposes. The pass runs on models with
recurrences only.
"""

from __future__ import annotations

import numpy as np

from tensorwright.ir import Graph, Shape, Value
from tensorwright.ir.ops import find_spec
from tensorwright.passes.rewriting.matcher import Match, apply, pattern
from tensorwright.passes.rewriting.rewriter import Rewriter

SLICE = pattern("""
    turned = transpose(x, dim0=1, dim1=2)
    out    = slice(turned, dim=1, start=start, end=end, step=1)
""", shared=["turned"])  # fmt: skip
PRODUCT = pattern("""
    left  = transpose(x, dim0=1, dim1=2)
    right = transpose(y, dim0=1, dim1=2)
    out   = mul(left, right)
""", shared=["left", "right"])  # fmt: skip
NUMBER = pattern("""
    turned = transpose(x, dim0=1, dim1=2)
    out    = mul(turned, c)
""", shared=["turned"], commute=True)  # fmt: skip
SCALED = pattern("""
    scaled = mul(x, factors)
    out    = slice(scaled, dim=-1, start=start, end=end, step=1)
""", shared=["scaled"], commute=True)  # fmt: skip
BIASED = pattern("""
    row = view(w)
    out = add(x, row)
""", commute=True)  # fmt: skip
WEIGHT = pattern("out = view(w)")
SOFTPLUS = pattern("out = where(gt(x, 20), x, log(add(exp(x), 1)))", commute=True)


HEADS = pattern("""
    split   = view(x)
    heads   = transpose(split, dim0=0, dim1=1)
    product = add(matmul(heads, w), bias)
    out     = view(transpose(product, dim0=0, dim1=1))
""", commute=True, shared=["split", "heads"])  # fmt: skip


REPEATED = pattern("""
    q_column = view(q)
    q_groups = expand(q_column)
    q_heads  = view(q_groups)
    k_column = view(k)
    k_groups = expand(k_column)
    k_heads  = view(k_groups)
    out      = delta_rule(q_heads, k_heads, v, decay, beta)
""")


def check_repeated(m: Match) -> None:
    for heads, groups, column in ((m.q_heads, m.q_groups, m.q_column), (m.k_heads, m.k_groups, m.k_column)):
        m.bind_shape(column, "1 S K 1 D")
        m.bind_shape(groups, "1 S K G D")
        m.bind_shape(heads, "1 S K*G*D")


def take_heads_once(m: Match, g: Rewriter) -> Value:
    """transformers before 5.23 repeats q and k for every head of v; the op does so by itself."""
    keys, width = int(m.dims["K"]), int(m.dims["K"]) * int(m.dims["D"])
    q, k = (g.view(column, shape=(1, m.out.shape[1], width)) for column in (m.q_column, m.k_column))
    out: Value = g.delta_rule(q, k, m.v, m.decay, m.beta, **{**m.out.node.attrs, "key_heads": keys})
    return out


def check_slice(m: Match) -> None:
    m.bind_shape(m.x, "1 S C")


def check_product(m: Match) -> None:
    m.bind_shape(m.x, "1 S C")
    m.bind_shape(m.y, "1 S C")


def check_number(m: Match) -> None:
    m.scalar(m.c)


def check_scaled(m: Match) -> None:
    m.bind_shape(m.x, "1 S C")
    m.bind_shape(m.factors, "1 1 C")
    m.require(m.factors.constant is not None, "the factors are no constant", m.factors)


def check_weight(m: Match) -> None:
    m.require(m.w.node is not None and m.w.node.op == "weight", "not a weight of the checkpoint", m.w)


def check_biased(m: Match) -> None:
    check_weight(m)
    m.bind_shape(m.x, "1 S C")
    m.bind_shape(m.row, "1 1 C")


def check_heads(m: Match) -> None:
    m.bind_shape(m.split, "S H K")
    m.bind_shape(m.x, "1 S H*K")
    m.bind_shape(m.w, "H K N")
    m.bind_shape(m.bias, "H 1 N")
    m.bind_shape(m.out, "1 S H*N")
    for weight in (m.w, m.bias):
        m.require(weight.node is not None and weight.node.op == "weight", "not a weight of the checkpoint", weight)


def check_softplus(m: Match) -> None:
    m.require(m.x.dtype == m.out.dtype == "float32", "not float32", m.x)


def slice_first(m: Match, g: Rewriter) -> Value:
    out: Value = g.transpose(g.slice(m.x, dim=2, start=m.start, end=m.end, step=1), dim0=1, dim1=2)
    return out


def multiply_first(m: Match, g: Rewriter) -> Value:
    out: Value = g.transpose(g.mul(m.x, m.y), dim0=1, dim1=2)
    return out


def scale_first(m: Match, g: Rewriter) -> Value:
    out: Value = g.transpose(g.mul(m.x, m.c), dim0=1, dim1=2)
    return out


def scale_slice(m: Match, g: Rewriter) -> Value:
    factors = np.asarray(m.factors.constant)[0, 0, m.start : m.end]
    part: Value = g.slice(m.x, dim=2, start=m.start, end=m.end, step=1)
    if (factors == 1.0).all():
        return part
    scaled: Value = g.mul(part, g.constant(factors, m.factors.dtype, factors.shape))
    return scaled


def multiply_heads(m: Match, g: Rewriter) -> Value:
    source, shape = m.w.node, tuple(int(m.dims[letter]) for letter in "HNK")
    w = g.weight(expr=source.attrs["expr"].transpose(1, 2), type=(m.w.dtype, shape), scope=source.scope)
    bias = reshaped(m.bias, (shape[0] * shape[1],), g)
    out: Value = g.add("add", g.head_products(m.x, w), bias)
    return out


def add_row(m: Match, g: Rewriter) -> Value:
    out: Value = g.add("add", m.x, reshaped(m.w, m.out.shape[2:], g))
    return out


def reshape_weight(m: Match, g: Rewriter) -> Value:
    return reshaped(m.w, m.out.shape, g)


def reshaped(weight: Value, shape: Shape, g: Rewriter) -> Value:
    source = weight.producer
    expr = source.attrs["expr"].reshape([int(d) for d in shape])
    out: Value = g.weight(expr=expr, type=(weight.dtype, shape), scope=source.scope)
    return out


def count_recurrences(graph: Graph) -> int:
    """Returns how many ops of the graph carry a state from token to token."""
    specs = (find_spec(node.op, graph.stage) for node in graph.nodes)
    return sum(spec is not None and spec.kind == "recurrence" for spec in specs)


def has_recurrences(graph: Graph) -> bool:
    return count_recurrences(graph) > 0


def canonicalise_recurrences(graph: Graph) -> int:
    return (
        apply(graph, REPEATED, check_repeated, take_heads_once)
        + apply(graph, SLICE, check_slice, slice_first)
        + apply(graph, PRODUCT, check_product, multiply_first)
        + apply(graph, NUMBER, check_number, scale_first)
        + apply(graph, SCALED, check_scaled, scale_slice)
        + apply(graph, BIASED, check_biased, add_row)
        + apply(graph, WEIGHT, check_weight, reshape_weight)
        + apply(graph, HEADS, check_heads, multiply_heads)
        + apply(graph, SOFTPLUS, check_softplus, lambda m, g: g.softplus(m.x))
    )
