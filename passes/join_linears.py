"""join_linears:  concat(linear(x, A), linear(x, B), linear(x, C))  ->  linear(x, concat(A, B, C))

    linear(x, W) + b  ->  linear(x, W, b)

S tokens, C channels.  x: [1, S, C].  A model that stores q, k and v of each head side by side joins them again before
it convolves them; split_interleaved_linears has made a linear of each, to which a bias may be added. The pass runs on
models with recurrences only.
"""

from __future__ import annotations

from tensorwright.ir import Graph, Value
from tensorwright.passes.rewriting.join_weights import join_weights
from tensorwright.passes.rewriting.matcher import Match, apply, pattern
from tensorwright.passes.rewriting.rewriter import Rewriter

PATTERN = pattern(
    """
    first  = linear(x, a, a_bias?)
    second = linear(x, b, b_bias?)
    third  = linear(x, c, c_bias?)
    out    = concat(first, second, third, dim=-1)
    """
)
BIAS = pattern("out = add(linear(x, w, none?), b)", commute=True)


def check(m: Match) -> None:
    m.bind_shape(m.x, "1 S C")
    for bias in (m.a_bias, m.b_bias, m.c_bias):
        m.require(bias is None, "a linear has a bias", m.out)
    for value in (m.a, m.b, m.c):
        m.require(value.node.op == "weight", "not a weight of the checkpoint", value)


def replace(m: Match, g: Rewriter) -> Value:
    scope = m.first.node.scope
    out: Value = g.linear(m.x, join_weights(g, [m.a, m.b, m.c], scope), scope=scope)
    return out


def check_bias(m: Match) -> None:
    m.require(m.none is None, "the linear has a bias already", m.out)
    m.require(m.b.node is not None and m.b.node.op == "weight", "not a weight of the checkpoint", m.b)
    m.bind_shape(m.w, "N C")
    m.bind_shape(m.b, "N")


def add_bias(m: Match, g: Rewriter) -> Value:
    out: Value = g.linear(m.x, m.w, m.b)
    return out


def join_linears(graph: Graph) -> int:
    return apply(graph, PATTERN, check, replace) + apply(graph, BIAS, check_bias, add_bias)
