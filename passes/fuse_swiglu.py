"""fuse_swiglu:  act(x[..., :I]) * x[..., I:]  ->  swiglu(x, activation)

act is silu, gelu, its approximation by tanh, or relu.  I inner.  x: [..., 2 I], the gate columns first.
"""

from __future__ import annotations

from tensorwright.ir import Graph, Value
from tensorwright.passes.rewriting.elementwise_trees import word_of
from tensorwright.passes.rewriting.matcher import Match, apply, pattern
from tensorwright.passes.rewriting.rewriter import Rewriter

PATTERN = pattern(
    """
    gate = slice(x, dim=-1, start=0, end=inner, step=1)
    up   = slice(x, dim=-1, start=inner, end=width, step=1)
    act  = either(silu(gate), either(gelu(gate), relu(gate)))
    out  = mul(act, up)
    """,
    commute=True,
)


def check(m: Match) -> None:
    m.require(m.width == m.x.shape[-1] == 2 * m.inner, "gate and up are not the two halves", m.x)


def replace(m: Match, g: Rewriter) -> Value:
    swiglu: Value = g.swiglu(m.x, activation=word_of(m.act.node))
    return swiglu


def fuse_swiglu(graph: Graph) -> int:
    return apply(graph, PATTERN, check, replace)
