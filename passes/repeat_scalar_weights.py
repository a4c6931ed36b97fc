"""repeat_scalar_weights:  mul(x, w)  ->  mul(x, w'), w' the number w for every channel

C channels.  x: [1, S, C], w: [1], a weight of the checkpoint.  w': [C].  Kernels multiply by vectors of channels.
"""

from __future__ import annotations

from tensorwright.ir import Graph, Value
from tensorwright.passes.rewriting.matcher import Match, apply, pattern
from tensorwright.passes.rewriting.rewriter import Rewriter

PATTERN = pattern("out = mul(x, w)", commute=True)


def check(m: Match) -> None:
    m.bind_shape(m.w, "1")
    m.bind_shape(m.x, "1 S C")
    m.require(m.w.node is not None and m.w.node.op == "weight", "not a weight of the checkpoint", m.w)
    m.require(isinstance(m.dims["C"], int) and m.dims["C"] != 1, "there is one channel", m.x)


def replace(m: Match, g: Rewriter) -> Value:
    width, source = int(m.dims["C"]), m.w.producer
    expr = source.attrs["expr"].repeat(0, width)
    vector = g.weight(expr=expr, type=(m.w.dtype, (width,)), scope=source.scope)
    out: Value = g.mul(m.x, vector)
    return out


def repeat_scalar_weights(graph: Graph) -> int:
    return apply(graph, PATTERN, check, replace)
