"""Lowered graphs with one thing wrong of mixtures of experts.

Like family_mutations.py: no shape changes, and each fails if the graph has nothing to break.
"""

from __future__ import annotations

from tensorwright.ir import Graph, Node
from tensorwright.ir.weights import Concat, Every, WeightExpr
from tensorwright.plugins.gated import ACTIVATIONS


def turn_experts(graph: Graph) -> None:
    """In the last mixture each expert has the matrix of gate and up of the next one.

    An expert that all tokens take, by a gate of its own, is a mixture of one, in which there is no next one.
    """
    found = [node for node in graph.nodes if node.op in EXPERTS and node.operand(3).shape[0] > 1]
    assert found, "the graph has no mixture of several experts"
    _reread(found[-1], 3, _turned)


def turn_router(graph: Graph) -> None:
    """In the last mixture each expert is chosen where the next one should be."""
    logits = _last(graph, *ROUTES).operand(0).producer
    assert logits.op == "matmul"
    _reread(logits, 1, _turned)


def flip_normalisation(graph: Graph) -> None:
    """The weights of the chosen experts sum to one where they should not, or the other way round."""
    node = _last(graph, *ROUTES)
    node.attrs["normalise"] = not node.attrs["normalise"]


def swap_gate_and_up(graph: Graph) -> None:
    """In the last mixture the activation is that of up."""
    node = _last(graph, "experts")
    inner = node.operand(4).shape[2]

    def swapped(expr: WeightExpr, count: int) -> WeightExpr:
        return expr.slice(1, inner, 2 * inner).concat([expr.slice(1, 0, inner)], 1)

    _reread(node, 3, swapped)


def change_activation(graph: Graph) -> None:
    """The last mixture has another activation."""
    node = _last(graph, "experts")
    node.attrs["activation"] = next(a for a in ACTIVATIONS if a != node.attrs["activation"])


def drop_shared_expert(graph: Graph) -> None:
    """What the expert of all tokens gives in the last layer is not added to the mixture."""
    found = [n for n in graph.find("matmul") if n.inputs[3] is not None and n.inputs[3].producer.op in MIXTURES]
    assert found, "no product is added to a mixture"
    mixture, out = found[-1].operand(3), found[-1].output
    for node in graph.nodes:
        node.inputs = [mixture if value is out else value for value in node.inputs]
    graph.drop_dead()


def drop_scores(graph: Graph) -> None:
    """The experts of the last mixture read rows that are not scaled by their scores."""
    first = _last(graph, "experts_up")
    assert first.inputs[2] is not None
    first.inputs[2] = None


def drop_gated_expert(graph: Graph) -> None:
    """What the expert of all tokens gives in the last layer, by its gate, is not added to the mixture."""
    found = [n for n in graph.find("add") if {v.producer.op for v in n.inputs if v is not None} == {"experts"}]
    assert found, "no two experts are added"
    kept = next(v for v in found[-1].inputs if v.producer.operand(1).shape[-1] > 1)
    for node in graph.nodes:
        node.inputs = [kept if value is found[-1].output else value for value in node.inputs]
    graph.drop_dead()


def change_score(graph: Graph) -> None:
    """The last route has the other score."""
    node = _last(graph, "route_by_score")
    node.attrs["score"] = "softmax" if node.attrs["score"] == "sigmoid" else "sigmoid"


def drop_correction(graph: Graph) -> None:
    """The last route chooses by the scores alone."""
    node = _last(graph, "route_by_score")
    assert node.inputs[1] is not None
    node.inputs[1] = None


def drop_expert_scales(graph: Graph) -> None:
    """The weights of the last route are not multiplied by the numbers of the experts."""
    node = _last(graph, "route_by_score")
    assert node.inputs[2] is not None
    node.inputs[2] = None


def turn_expert_scales(graph: Graph) -> None:
    """The weights of the last route are multiplied by the number of the next expert each."""
    _reread(_last(graph, "route_by_score"), 2, _turned)


def share_router_norm(graph: Graph) -> None:
    """The rows of the last router are multiplied by the norm's weight of the experts' rows."""
    experts, users = _last(graph, "experts"), graph.users()
    norm = experts.operand(0).producer
    own = [node for node in users[norm.operand(0)] if node.op == "rms_norm" and node is not norm]
    routers = [node for node in own if users[node.outputs[0]][0].op == "elementwise"]
    assert len(routers) == 1, "the router has no norm of its own"
    routers[0].operand(1).producer.attrs["expr"] = norm.operand(1).producer.attrs["expr"]


def weigh_by_correction(graph: Graph) -> None:
    """The correction of the last route counts for the weights too: it stands in the logits."""
    node = _last(graph, "route_by_score")
    assert node.inputs[1] is not None
    assert node.attrs["by_scores"]
    node.attrs["by_scores"] = False


def take_every_group(graph: Graph) -> None:
    """The last route chooses among all groups of experts."""
    node = _last(graph, "route_by_score")
    assert node.attrs["group_limit"] < node.attrs["groups"]
    node.attrs["group_limit"] = node.attrs["groups"]


def score_groups_by_one(graph: Graph) -> None:
    """The last route knows a group by its best expert alone."""
    node = _last(graph, "route_by_score")
    assert node.attrs["group_best"] == 2
    node.attrs["group_best"] = 1


def forget_scale(graph: Graph) -> None:
    """The weights of the last route are not scaled."""
    node = _last(graph, "route_by_score")
    assert node.attrs["scale"] != 1
    node.attrs["scale"] = 1.0


def change_jitter(graph: Graph) -> None:
    """Experts whose logits are nearer count for the weights of the last route."""
    node = _last(graph, "route_by_score")
    assert node.attrs["jitter"] > 0
    node.attrs["jitter"] /= 4


def drop_clamp(graph: Graph) -> None:
    """The gates of the last mixture have no limit."""
    _last(graph, "experts_up").attrs["limit"] = float("inf")


def drop_up_offset(graph: Graph) -> None:
    """The last mixture multiplies by up alone, not by up + 1."""
    _last(graph, "experts_up").attrs["up_offset"] = 0.0


def change_slope(graph: Graph) -> None:
    """The gates of the last mixture are plain silu."""
    node = _last(graph, "experts_up")
    assert node.attrs["slope"] != 1
    node.attrs["slope"] = 1.0


def drop_up_biases(graph: Graph) -> None:
    """The first products of the last mixture have no bias."""
    _last(graph, "experts_up").inputs[4] = None


def drop_down_biases(graph: Graph) -> None:
    """The second products of the last mixture have no bias."""
    _last(graph, "experts_down").inputs[4] = None


def join_alternating_rows(graph: Graph) -> None:
    """The rows of gate and up of the last mixture are taken in the order in which they are stored."""

    def as_stored(expr: WeightExpr, count: int) -> WeightExpr:
        assert isinstance(expr, Concat)
        assert isinstance(expr.parts[0], Every)
        return expr.parts[0].part

    _reread(_last(graph, "experts_up"), 3, as_stored)


MIXTURES = ("experts", "experts_down")
EXPERTS, ROUTES = ("experts", "experts_up"), ("route", "route_by_score")


def _last(graph: Graph, *ops: str) -> Node:
    found = [node for node in graph.nodes if node.op in ops]
    found = [node for node in found if node.op not in ROUTES or node.operand(0).shape[-1] > 1]
    assert found, f"the graph has no {' or '.join(ops)}"
    return found[-1]


def _turned(expr: WeightExpr, count: int) -> WeightExpr:
    """The same with the first of `count` parts of dimension 0 behind the others."""
    return expr.slice(0, 1, count).concat([expr.slice(0, 0, 1)], 0)


def _reread(node: Node, at: int, change: object) -> None:
    weight = node.operand(at).producer
    assert callable(change)
    weight.attrs["expr"] = change(weight.attrs["expr"], weight.output.shape[0])
