"""canonicalise_scalars:  one spelling of arithmetic with scalar constants, same bits.

    pow(x, 2), square(x) -> mul(x, x)          pow(x, 3) -> mul(mul(x, x), x)          pow(x, -0.5) -> rsqrt(x)
    sub(x, c) -> add(x, -c)                    op(c, x) -> op(x, c)
    mul(x, 1), x / 1 -> x                      x / c -> x * (1/c) where c is a power of two
    clamp(x) between infinities -> x

A constant becomes the second operand of add and mul. Division by any other constant stays: 1/c would be rounded.
"""

from __future__ import annotations

import math

from tensorwright.ir import Graph, Value
from tensorwright.passes.rewriting.matcher import Match, apply, pattern
from tensorwright.passes.rewriting.rewriter import Rewriter

POWER = pattern("out = pow(x, 2)")
CUBE = pattern("out = pow(x, 3)")
INVERSE_ROOT = pattern("out = pow(x, -0.5)")
SQUARE = pattern("out = square(x)")
SUBTRACTION = pattern("out = sub(x, c)")
DIVISION = pattern("out = div(x, c)")
MULTIPLY_FIRST = pattern("out = mul(c, x)")
ADD_FIRST = pattern("out = add(c, x)")
TIMES_ONE = pattern("out = mul(x, 1)")
CLAMP = pattern("out = clamp(x, min=least, max=largest)")


def check_subtraction(m: Match) -> None:
    m.require(m.c.is_scalar_constant, "not a scalar constant", m.c)
    m.require(m.x.dtype == m.out.dtype, "the subtraction changes the type", m.x)
    m.require(type(m.c.constant) in (int, float), "not a Python number", m.c)


def check_division(m: Match) -> None:
    number = m.scalar(m.c)
    m.require(m.x.dtype == m.out.dtype and type(m.c.constant) in (int, float), "integer division", m.x)
    exact = number != 0 and math.isfinite(number) and abs(math.frexp(number)[0]) == 0.5
    # The bounds are far from the smallest and largest numbers of every float type except float16, which
    # widen_activations has removed.
    m.require(exact and 2.0**-60 <= abs(number) <= 2.0**60, "1/c is not exact", m.c)


def check_constant_first(m: Match) -> None:
    m.require(m.c.is_scalar_constant and not m.x.is_scalar_constant, "no constant comes first", m.c)


def check_times_one(m: Match) -> None:
    same = m.x.dtype == m.out.dtype and m.x.shape == m.out.shape
    m.require(same, "the multiplication changes the type", m.x)


def check_clamp(m: Match) -> None:
    m.require(m.x.dtype == m.out.dtype, "the clamp changes the type", m.x)
    endless = m.least in (None, -math.inf) and m.largest in (None, math.inf)
    m.require(endless, "the clamp has a bound", m.out)


def add_opposite(m: Match, g: Rewriter) -> Value:
    out: Value = g.add("add", m.x, g.constant(-m.c.constant, m.c.dtype))
    return out


def multiply_by_inverse(m: Match, g: Rewriter) -> Value:
    out: Value = g.mul(m.x, g.constant(1.0 / m.scalar(m.c), m.c.dtype))
    return out


def canonicalise_scalars(graph: Graph) -> int:
    return (
        apply(graph, POWER, None, lambda m, g: g.mul(m.x, m.x))
        + apply(graph, CUBE, None, lambda m, g: g.mul(g.mul(m.x, m.x), m.x))
        + apply(graph, INVERSE_ROOT, None, lambda m, g: g.rsqrt(m.x))
        + apply(graph, SQUARE, None, lambda m, g: g.mul(m.x, m.x))
        + apply(graph, SUBTRACTION, check_subtraction, add_opposite)
        + apply(graph, DIVISION, check_division, multiply_by_inverse)
        + apply(graph, MULTIPLY_FIRST, check_constant_first, lambda m, g: g.mul(m.x, m.c))
        + apply(graph, ADD_FIRST, check_constant_first, lambda m, g: g.add("add", m.x, m.c))
        + apply(graph, TIMES_ONE, check_times_one, lambda m, g: m.x)
        + apply(graph, CLAMP, check_clamp, lambda m, g: m.x)
    )
