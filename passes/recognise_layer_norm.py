"""recognise_layer_norm:  rms_norm(x - mean(x), w)  ->  layer_norm(x, w);   layer_norm(x, w + 1, b)  ->  the same of w

C channels.  x: [..., C], w: [C].  Most models call torch's operation, which the tracer keeps. Cohere writes it out, and
recognise_rms_norm knows the part after the mean. Nemotron stores weights as differences from one.

    w * layer_norm(x, 1)  ->  layer_norm(x, w)        H heads of D columns: x: [..., H, D], w: [H, D]
"""

from __future__ import annotations

import numpy as np

from tensorwright.ir import Graph, Value
from tensorwright.passes.rewriting.matcher import Match, apply, pattern
from tensorwright.passes.rewriting.rewriter import Rewriter

PATTERN = pattern("""
    centred = sub(x, mean(x, dims=[-1], keepdim=True))
    out     = rms_norm(centred, w, eps=eps, weight_offset=offset)
""")
PLUS_ONE = pattern("""
    scale = add(w, 1)
    out   = layer_norm(x, scale, b?, eps=eps, weight_offset=0.0)
""", shared=["scale"])  # fmt: skip
EACH_HEAD = pattern("""
    norm = layer_norm(x, ones, eps=eps, weight_offset=0.0)
    out  = mul(w, norm)
""", commute=True)  # fmt: skip


def check_each_head(m: Match) -> None:
    m.bind_shape(m.w, "H D")
    m.bind_shape(m.x, "... H D")
    m.require(m.w.node is not None and m.w.node.op == "weight", "the scale is not a weight", m.w)
    m.require(m.ones.constant is not None and np.all(m.ones.constant == 1), "the norm has a weight already", m.ones)


def check(m: Match) -> None:
    m.bind_shape(m.w, "C")
    m.bind_shape(m.x, "... C")


def check_plus_one(m: Match) -> None:
    m.require(m.w.node is not None and m.w.node.op == "weight", "the scale is not a weight", m.w)


def replace(m: Match, g: Rewriter) -> Value:
    norm: Value = g.layer_norm(m.x, m.w, eps=m.eps, weight_offset=m.offset)
    return norm


def shift(m: Match, g: Rewriter) -> Value:
    operands = [m.x, m.w, *([] if m.b is None else [m.b])]
    norm: Value = g.layer_norm(*operands, eps=m.eps, weight_offset=1.0)
    return norm


def weigh(m: Match, g: Rewriter) -> Value:
    norm: Value = g.layer_norm(m.x, m.w, eps=m.eps, weight_offset=0.0)
    return norm


def recognise_layer_norm(graph: Graph) -> int:
    count = apply(graph, PATTERN, check, replace) + apply(graph, PLUS_ONE, check_plus_one, shift)
    apply(graph, EACH_HEAD, check_each_head, weigh)  # the same norms once more
    return count
