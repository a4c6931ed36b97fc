"""recognise_gelu:  x/2 * (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))  ->  gelu(x, approximate="tanh")

Some models write out what is one op in torch. In an elementwise program it is one word.
"""

from __future__ import annotations

from tensorwright.ir import Graph
from tensorwright.passes.rewriting.matcher import Match, apply, pattern

PATTERN = pattern(
    """
    cube  = mul(mul(x, x), x)
    inner = mul(add(x, mul(cube, 0.044715)), 0.7978845608028654)
    out   = mul(mul(x, 0.5), add(tanh(inner), 1))
    """,
    commute=True,
)


def check(m: Match) -> None:
    m.require(m.x.dtype == m.out.dtype == "float32", "not float32", m.x)


def recognise_gelu(graph: Graph) -> int:
    return apply(graph, PATTERN, check, lambda m, g: g.gelu(m.x, approximate="tanh"))
