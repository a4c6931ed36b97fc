"""recognise_gelu:  x/2 * (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))  ->  gelu(x, approximate="tanh")

The sum may be written as x (1 + 0.044715 x^2), and the root of 2/pi with the digits that float32 holds. Some models
write out what is one op in torch. In an elementwise program it is one word.
"""

from __future__ import annotations

import math

import numpy as np

from tensorwright.ir import Graph, Value
from tensorwright.passes.rewriting.matcher import Match, apply, pattern
from tensorwright.passes.rewriting.rewriter import Rewriter

PATTERN = pattern(
    """
    cube  = mul(mul(x, x), x)
    inner = mul(add(x, mul(cube, 0.044715)), 0.7978845608028654)
    out   = mul(mul(x, 0.5), add(tanh(inner), 1))
    """,
    commute=True,
)
FACTORED = pattern(
    """
    square = mul(mul(x, 0.044715), x)
    inner  = mul(mul(x, factor), add(square, 1))
    out    = mul(mul(x, 0.5), add(tanh(inner), 1))
    """,
    commute=True,
)


def check(m: Match) -> None:
    m.require(m.x.dtype == m.out.dtype == "float32", "not float32", m.x)


def check_factored(m: Match) -> None:
    check(m)
    m.require(np.float32(m.scalar(m.factor)) == np.float32(math.sqrt(2 / math.pi)), "not the root of 2/pi", m.factor)


def replace(m: Match, g: Rewriter) -> Value:
    out: Value = g.gelu(m.x, approximate="tanh")
    return out


def recognise_gelu(graph: Graph) -> int:
    return apply(graph, PATTERN, check, replace) + apply(graph, FACTORED, check_factored, replace)
