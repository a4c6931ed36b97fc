"""recognise_xielu:  where(x > 0, p, n)  ->  step * p + (1 - step) * n, all by operations that programs have words for

    p = softplus(a) x^2 + b x        n = (b + softplus(c)) (expm1(min(x, e)) - x) + b x
    step = min(max(2^126 x, 0), 1)   expm1(y) = 2 t / (1 - t) with t = tanh(y / 2)

C channels.  x: [1, S, C]; a, c: [1], b, e: [], weights of the checkpoint. They become vectors [C], which kernels read.
step is 1 for every positive number that is not subnormal, and 0 for the others. xIELU is from
https://arxiv.org/abs/2411.13010.
"""

from __future__ import annotations

from tensorwright.ir import Graph, Value
from tensorwright.passes.rewriting.matcher import Match, apply, pattern
from tensorwright.passes.rewriting.rewriter import Rewriter

PATTERN = pattern(
    """
    line     = mul(b, x)
    positive = add(mul(mul(softplus(a), x), x), line)
    below    = sub(expm1(minimum(x, e)), x)
    negative = add(mul(below, add(b, softplus(c))), line)
    out      = where(gt(x, 0), positive, negative)
    """,
    commute=True,
)

STEEP = 2.0**126
"""The smallest normal number of float32 times this is 1."""


def check(m: Match) -> None:
    m.bind_shape(m.x, "1 S C")
    m.require(m.x.dtype == "float32", "not float32", m.x)
    for value in (m.a, m.b, m.c, m.e):
        m.require(value.node is not None and value.node.op == "weight", "not a weight of the checkpoint", value)
        m.require(value.shape in ((), (1,)), "not one number", value)


def replace(m: Match, g: Rewriter) -> Value:
    a, b, c, e = (vector(m, g, value) for value in (m.a, m.b, m.c, m.e))
    zero, one, two = (g.constant(number, "float64") for number in (0.0, 1.0, 2.0))
    step = g.minimum(g.maximum(g.mul(m.x, g.constant(STEEP, "float64")), zero), one)
    t = g.tanh(g.mul(g.minimum(m.x, e), g.constant(0.5, "float64")))
    below = g.sub(g.div(g.mul(t, two), g.sub(one, t)), m.x)
    negative = g.add("add", g.mul(below, g.softplus(c)), g.mul(below, b))
    positive = g.mul(g.mul(m.x, g.softplus(a)), m.x)
    curve = g.add("add", g.mul(step, positive), g.mul(g.sub(one, step), negative))
    out: Value = g.add("add", curve, g.mul(m.x, b))
    return out


def vector(m: Match, g: Rewriter, number: Value) -> Value:
    """Returns a stored number once for every channel."""
    width, source = int(m.dims["C"]), number.producer
    expr = source.attrs["expr"] if number.rank else source.attrs["expr"].reshape([1])
    w: Value = g.weight(expr=expr.repeat(0, width), type=(number.dtype, (width,)), scope=source.scope)
    return w


def recognise_xielu(graph: Graph) -> int:
    return apply(graph, PATTERN, check, replace)
