"""canonicalise_recurrences:  recurrences on [1, S, C], with weights as operands

    slice(transpose(x), dim=1)       ->  transpose(slice(x, dim=2))
    mul(transpose(x), transpose(y))  ->  transpose(mul(x, y)), and with a number in place of y likewise
    slice(mul(x, v))                 ->  mul(slice(x), v'), v a constant [1, 1, C] and v' its part [C']
    view(W)                          ->  W', a weight of another shape

S tokens, C channels.  x, y: [1, S, C].  transformers convolves [1, C, S]; canonicalise_shapes then removes pairs of
transposes. The pass changes only models with recurrences.
"""

from __future__ import annotations

import numpy as np

from tensorwright.ir import Graph, Value
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
WEIGHT = pattern("out = view(w)")


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


def reshape_weight(m: Match, g: Rewriter) -> Value:
    source = m.w.node
    expr = source.attrs["expr"].reshape([int(d) for d in m.out.shape])
    out: Value = g.weight(expr=expr, type=(m.w.dtype, m.out.shape), scope=source.scope)
    return out


def has_recurrences(graph: Graph) -> bool:
    """Returns whether an op of the graph carries a state from token to token."""
    specs = (find_spec(node.op, graph.stage) for node in graph.nodes)
    return any(spec is not None and spec.kind == "recurrence" for spec in specs)


def canonicalise_recurrences(graph: Graph) -> int:
    if not has_recurrences(graph):
        return 0
    return (
        apply(graph, SLICE, check_slice, slice_first)
        + apply(graph, PRODUCT, check_product, multiply_first)
        + apply(graph, NUMBER, check_number, scale_first)
        + apply(graph, SCALED, check_scaled, scale_slice)
        + apply(graph, WEIGHT, check_weight, reshape_weight)
    )
