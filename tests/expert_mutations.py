"""Lowered graphs with one thing wrong of mixtures of experts.

Like family_mutations.py: no shape changes, and each fails if the graph has nothing to break.
"""

from __future__ import annotations

from tensorwright.ir import Graph, Node
from tensorwright.ir.weights import WeightExpr
from tensorwright.plugins.gated import ACTIVATIONS


def turn_experts(graph: Graph) -> None:
    """In the last mixture each expert has the matrix of gate and up of the next one."""
    _reread(_last(graph, "experts"), 3, _turned)


def turn_router(graph: Graph) -> None:
    """In the last mixture each expert is chosen where the next one should be."""
    logits = _last(graph, "route").operand(0).producer
    assert logits.op == "matmul"
    _reread(logits, 1, _turned)


def flip_normalisation(graph: Graph) -> None:
    """The weights of the chosen experts sum to one where they should not, or the other way round."""
    node = _last(graph, "route")
    node.attrs["normalise"] = not node.attrs["normalise"]


def swap_gate_and_up(graph: Graph) -> None:
    """In the last mixture the activation is that of up."""
    node = _last(graph, "experts")
    inner = node.operand(4).shape[2]

    def swapped(expr: WeightExpr) -> WeightExpr:
        return expr.slice(1, inner, 2 * inner).concat([expr.slice(1, 0, inner)], 1)

    _reread(node, 3, swapped)


def change_activation(graph: Graph) -> None:
    """The last mixture has another activation."""
    node = _last(graph, "experts")
    node.attrs["activation"] = next(a for a in ACTIVATIONS if a != node.attrs["activation"])


def drop_shared_expert(graph: Graph) -> None:
    """What the expert of all tokens gives in the last layer is not added to the mixture."""
    found = [n for n in graph.find("matmul") if n.inputs[3] is not None and n.inputs[3].producer.op == "experts"]
    assert found, "no product is added to a mixture"
    mixture, out = found[-1].operand(3), found[-1].output
    for node in graph.nodes:
        node.inputs = [mixture if value is out else value for value in node.inputs]
    graph.drop_dead()


def _last(graph: Graph, op: str) -> Node:
    found = list(graph.find(op))
    assert found, f"the graph has no {op}"
    return found[-1]


def _turned(expr: WeightExpr) -> WeightExpr:
    """The same with the first part of dimension 0 behind the others."""
    return expr.slice(0, 1, 6).concat([expr.slice(0, 0, 1)], 0)


def _reread(node: Node, at: int, change: object) -> None:
    weight = node.operand(at).producer
    assert callable(change)
    weight.attrs["expr"] = change(weight.attrs["expr"])
