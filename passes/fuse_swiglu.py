"""fuse_swiglu:  silu(x[..., :I]) * x[..., I:]  ->  swiglu(x)

I inner.  x: [..., 2 I], the gate columns first.
"""

from __future__ import annotations

from tensorwright.builder.ir import Graph
from tensorwright.passes.matcher import Match, apply, pattern

PATTERN = pattern(
    """
    gate = slice(x, dim=-1, start=0, end=inner, step=1)
    up   = slice(x, dim=-1, start=inner, end=width, step=1)
    out  = mul(silu(gate), up)
    """,
    commute=True,
)


def check(m: Match) -> None:
    m.require(m.width == m.x.shape[-1] == 2 * m.inner, "gate and up are not the two halves", m.x)


def fuse_swiglu(graph: Graph) -> int:
    return apply(graph, PATTERN, check, lambda m, g: g.swiglu(m.x))
