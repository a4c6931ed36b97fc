"""recognise_gated_expert:  sigmoid(x g^T) * mlp(x)  ->  experts(x, ...) of one expert, that a route weighs by g

    mlp(x)       = act(x Wg^T) * (x Wu^T) Wd^T
    index, share = route(x g^T){k = 1, score = "sigmoid"}
    out          = experts(x, index, share, [[Wg, Wu]], [Wd])

The expert that all tokens take has such a gate in Qwen 2 MoE and its successors: one number for each token.

S tokens, C columns, I inner.  x: [1, S, C], g: [1, C].
"""

from __future__ import annotations

from tensorwright.ir import Graph, Value
from tensorwright.passes.rewriting.matcher import Match, apply, pattern
from tensorwright.passes.rewriting.rewriter import Rewriter

PATTERN = pattern(
    """
    share = sigmoid(linear(x, g, gate_bias?))
    inner = swiglu(linear(x, up, up_bias?), activation=activation)
    out   = mul(share, linear(inner, down, down_bias?))
    """,
    commute=True,
)


def check(m: Match) -> None:
    m.bind_shape(m.x, "1 S C")
    m.bind_shape(m.g, "1 C")
    m.bind_shape(m.down, "C I")
    for bias in (m.up_bias, m.down_bias):
        m.require(bias is None, "a product has a bias", m.out)
    for matrix in (m.up, m.down):
        m.require(matrix.node is not None and matrix.node.op == "weight", "not a weight of the checkpoint", matrix)


def replace(m: Match, g: Rewriter) -> Value:
    index, share = g.route(g.linear(m.x, m.g, m.gate_bias), k=1, normalise=False, score="sigmoid")
    up, down = (stacked(g, matrix) for matrix in (m.up, m.down))
    out: Value = g.experts(m.x, index, share, up, down, activation=m.activation)
    return out


def stacked(g: Rewriter, matrix: Value) -> Value:
    """Returns a matrix as the only one of a layer of experts."""
    expr, shape = matrix.producer.attrs["expr"].stack(), (1, *matrix.shape)
    out: Value = g.weight(expr=expr, type=(matrix.dtype, shape), scope=matrix.producer.scope)
    return out


def recognise_gated_expert(graph: Graph) -> int:
    return apply(graph, PATTERN, check, replace)
