"""fuse_add_rms_norm:  sum = residual + x;  y = rms_norm(sum, w)  ->  y, sum = add_rms_norm(x, residual, w)

S tokens, C channels.  x, residual, sum, y: [1, S, C], w: [C].  The sum stays a result: it is the residual stream.
"""

from __future__ import annotations

from tensorwright.ir import Graph, Value
from tensorwright.passes.rewriting.matcher import Match, apply, pattern
from tensorwright.passes.rewriting.rewriter import Rewriter

PATTERN = pattern(
    """
    sum = add(residual, x)
    y   = rms_norm(sum, w, eps=eps, weight_offset=offset)
    """,
    outputs=["y", "sum"],
)


def check(m: Match) -> None:
    m.bind_shape(m.x, "1 S C")
    m.bind_shape(m.residual, "1 S C")


def replace(m: Match, g: Rewriter) -> tuple[Value, Value]:
    fused: tuple[Value, Value] = g.add_rms_norm(m.x, m.residual, m.w, eps=m.eps, weight_offset=m.offset)
    return fused


def fuse_add_rms_norm(graph: Graph) -> int:
    return apply(graph, PATTERN, check, replace)
