"""fuse_gate_up:  act(x Wg^T + bg) * (x Wu^T + bu)  ->  act(gate) * up,  slices of one linear with both weights

act is silu, gelu, its approximation by tanh, or relu.  S tokens, C channels, I inner.  x: [1, S, C], Wg, Wu: [I, C];
the fused weight is [2 I, C], gate first.
"""

from __future__ import annotations

from tensorwright.ir import Graph, Value
from tensorwright.passes.rewriting.join_weights import join_weights, shared_scope, slice_columns
from tensorwright.passes.rewriting.matcher import Match, apply, pattern
from tensorwright.passes.rewriting.rewriter import Rewriter

PATTERN = pattern(
    """
    gate = linear(x, gate_weight, gate_bias?)
    up   = linear(x, up_weight, up_bias?)
    act  = either(silu(gate), either(gelu(gate), relu(gate)))
    out  = mul(act, up)
    """,
    commute=True,
)


def check(m: Match) -> None:
    m.bind_shape(m.x, "1 S C")
    m.bind_shape(m.gate_weight, "I C")
    m.bind_shape(m.up_weight, "I C")
    m.require((m.gate_bias is None) == (m.up_bias is None), "only one of gate and up has a bias", m.gate)
    for value in (m.gate_weight, m.up_weight, m.gate_bias, m.up_bias):
        m.require(value is None or value.node.op == "weight", "not a weight of the checkpoint", value)


def replace(m: Match, g: Rewriter) -> Value:
    scope = shared_scope([m.gate, m.up])
    weight = join_weights(g, [m.gate_weight, m.up_weight], scope)
    bias = join_weights(g, [m.gate_bias, m.up_bias], scope) if m.gate_bias is not None else None
    both = g.linear(m.x, weight, bias, scope=scope)
    gate, up = slice_columns(g, both, [m.dims["I"], m.dims["I"]])
    out: Value = g.mul(g.add(m.act.node.op, gate, **m.act.node.attrs), up)
    return out


def fuse_gate_up(graph: Graph) -> int:
    return apply(graph, PATTERN, check, replace)
