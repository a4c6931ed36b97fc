"""recognise_rms_norm:  w' * (x * rsqrt(mean(x*x, -1) + eps))  ->  rms_norm(x, w, eps, weight_offset)

    w' * rms_norm(x, 1, eps)  ->  rms_norm(x, w, eps, weight_offset)        where others read the norm without a weight

C channels.  x: [..., C], w: [C], eps a constant.  w' is w, or w + offset if the checkpoint stores differences
from one.  The mean is over C.  A norm without a weight gets one, a constant of ones.
"""

from __future__ import annotations

import numpy as np

from tensorwright.ir import Graph, Value
from tensorwright.passes.rewriting.matcher import Match, apply, pattern
from tensorwright.passes.rewriting.rewriter import Rewriter

PATTERN = pattern(
    """
    variance = mean(mul(x, x), dims=[-1], keepdim=True)
    inverse  = rsqrt(add(variance, eps))
    out      = mul(add?(w, offset), mul(x, inverse))
    """,
    commute=True,
)
WEIGHED = pattern(
    """
    norm = rms_norm(x, ones, eps=eps, weight_offset=plain)
    out  = mul(add?(w, offset), norm)
    """,
    shared=["norm"],
    commute=True,
)
PLAIN = pattern(
    """
    variance = mean(mul(x, x), dims=[-1], keepdim=True)
    inverse  = rsqrt(add(variance, eps))
    out      = mul(x, inverse)
    """,
    commute=True,
)


def check_plain(m: Match) -> None:
    m.require(m.x.dtype == m.out.dtype == "float32", "the norm is not computed in float32", m.out)
    m.require(m.scalar(m.eps) > 0, "epsilon is not positive", m.eps)
    m.require(isinstance(m.x.shape[-1], int), "the width is not fixed", m.x)


def check(m: Match) -> None:
    m.bind_shape(m.w, "C")
    m.bind_shape(m.x, "... C")
    m.require(m.w.node.op == "weight", "the scale is not a weight", m.w)
    m.require(m.x.dtype == m.out.dtype == "float32", "the norm is not computed in float32", m.out)
    m.require(m.scalar(m.eps) > 0, "epsilon is not positive", m.eps)
    m.require(m.offset is None or m.scalar(m.offset) == 1.0, "the weight's offset is not one", m.offset)


def check_weighed(m: Match) -> None:
    m.bind_shape(m.w, "C")
    m.bind_shape(m.x, "... C")
    m.require(m.w.node is not None and m.w.node.op == "weight", "the scale is not a weight", m.w)
    m.require(m.plain == 0.0 and m.ones.constant is not None, "the norm has a weight", m.ones)
    m.require(bool((np.asarray(m.ones.constant) == 1).all()), "the norm has a weight", m.ones)
    m.require(m.offset is None or m.scalar(m.offset) == 1.0, "the weight's offset is not one", m.offset)


def replace_weighed(m: Match, g: Rewriter) -> Value:
    norm: Value = g.rms_norm(m.x, m.w, eps=m.eps, weight_offset=0.0 if m.offset is None else 1.0)
    return norm


def replace(m: Match, g: Rewriter) -> Value:
    offset = 0.0 if m.offset is None else m.scalar(m.offset)
    norm: Value = g.rms_norm(m.x, m.w, eps=m.scalar(m.eps), weight_offset=offset)
    return norm


def replace_plain(m: Match, g: Rewriter) -> Value:
    size = int(m.x.shape[-1])
    ones = g.constant(np.ones(size, np.float32), "float32", [size])
    norm: Value = g.rms_norm(m.x, ones, eps=m.scalar(m.eps), weight_offset=0.0)
    return norm


def recognise_rms_norm(graph: Graph) -> int:
    found = apply(graph, PATTERN, check, replace) + apply(graph, PLAIN, check_plain, replace_plain)
    return found + apply(graph, WEIGHED, check_weighed, replace_weighed)
