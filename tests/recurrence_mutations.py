"""Lowered graphs with one thing wrong of recurrences.

Like family_mutations.py: no shape changes, and each fails if the graph has nothing to break.
"""

from __future__ import annotations

from collections.abc import Callable

from tensorwright.ir import Graph, Node
from tensorwright.ir.weights import WeightExpr


def forget_oldest_input(graph: Graph) -> None:
    """The last convolution is one token narrower: what its oldest input should weigh, the next one weighs too."""

    def narrower(expr: WeightExpr, node: Node) -> WeightExpr:
        (count,) = node.operand(5).shape
        channels = int(node.operand(0).shape[1])
        return expr.slice(0, channels, 2 * channels).concat([expr.slice(0, channels, count)])

    _reread(_last(graph, "carried_conv"), 5, narrower)


def turn_convolution(graph: Graph) -> None:
    """The last convolution has the weights of its inputs in the opposite order."""

    def turned(expr: WeightExpr, node: Node) -> WeightExpr:
        channels, (count,) = int(node.operand(0).shape[1]), node.operand(5).shape
        rows = [expr.slice(0, start, start + channels) for start in range(0, count, channels)]
        return rows[-1].concat(rows[-2::-1])

    _reread(_last(graph, "carried_conv"), 5, turned)


def change_activation(graph: Graph) -> None:
    """The last convolution has an activation where it should have none, or the other way round."""
    node = _last(graph, "carried_conv")
    node.attrs["activation"] = "none" if node.attrs["activation"] == "silu" else "silu"


def drop_convolution_bias(graph: Graph) -> None:
    """The last convolution has no bias."""
    node = _last(graph, "carried_conv")
    assert node.inputs[6] is not None
    node.inputs[6] = None


def share_state(graph: Graph) -> None:
    """The last recurrence carries on the state of the first one of its kind, which shows where a step ends."""
    first, *_, last = [n for n in graph.nodes if n.op == _kinds(graph)[-1]]
    last.attrs["state"] = first.attrs["state"]
    last.inputs[_state_operand(last)] = first.inputs[_state_operand(first)]


def turn_decay(graph: Graph) -> None:
    """Each head of the last scan decays as the next one should."""
    _reread_vectors(graph, 0)


def turn_skip(graph: Graph) -> None:
    """Each head of the last scan adds its input as the next one should."""
    _reread_vectors(graph, 1)


def turn_step_bias(graph: Graph) -> None:
    """Each head of the last scan takes the steps of the next one."""
    _reread_vectors(graph, 2)


def forget_limits(graph: Graph) -> None:
    """The steps of the last scan have no limits."""
    node = _last(graph, "carried_scan")
    assert 0 < node.attrs["dt_min"] < node.attrs["dt_max"] < 1
    node.attrs.update(dt_min=0.0, dt_max=1e9)


def share_groups(graph: Graph) -> None:
    """The heads of the last scan take their groups in turn: one group of twice as many states stands for two."""
    node = _last(graph, "carried_scan")
    assert node.attrs["groups"] == 2
    node.attrs.update(groups=1, states=2 * node.attrs["states"])
    layer = node.attrs["state"]
    layers = list(graph.facts.state_layers)
    layers[layer] = type(layers[layer])(2 * layers[layer].bytes)
    graph.facts.state_layers = layers


def turn_delta_decay(graph: Graph) -> None:
    """Each head of the last delta rule decays as the next one should."""

    def turned(expr: WeightExpr, node: Node) -> WeightExpr:
        return expr.slice(0, 1, node.attrs["heads"]).concat([expr.slice(0, 0, 1)])

    _reread(_last(graph, "carried_delta_rule"), 7, turned)


def double_rate(graph: Graph) -> None:
    """The last delta rule takes back twice as much of each error."""
    _last(graph, "carried_delta_rule").attrs["beta_scale"] *= 2.0


def swap_queries_and_keys(graph: Graph) -> None:
    """The last delta rule reads by keys and writes by queries."""
    conv = _last(graph, "carried_conv")
    linear = conv.operand(0).producer
    rule = _last(graph, "carried_delta_rule")
    keys = (int(conv.operand(0).shape[1]) - rule.attrs["heads"] * rule.attrs["width"]) // 2

    def swapped(expr: WeightExpr, node: Node) -> WeightExpr:
        rest = expr.slice(0, 2 * keys, int(node.output.shape[1]))
        return expr.slice(0, keys, 2 * keys).concat([expr.slice(0, 0, keys), rest])

    _reread(linear, 1, swapped)


def drop_gate(graph: Graph) -> None:
    """The gate of the last layer is not applied."""
    gates = [n for n in graph.find("elementwise") if "silu" in n.attrs["program"]]
    gates[-1].attrs["program"] = "x0 x1 x1 sub add"


def _kinds(graph: Graph) -> list[str]:
    return [n.op for n in graph.nodes if n.op.startswith("carried_")]


def _state_operand(node: Node) -> int:
    return next(i for i, value in enumerate(node.inputs) if value is not None and value.dtype == "state")


def _last(graph: Graph, op: str) -> Node:
    return graph.find(op)[-1]


def _reread_vectors(graph: Graph, which: int) -> None:
    """Turns one of the vectors of the last scan by one head."""

    def turned(expr: WeightExpr, node: Node) -> WeightExpr:
        heads = node.attrs["heads"]
        start = which * heads
        parts = [(0, start), (start + 1, start + heads), (start, start + 1), (start + heads, 3 * heads)]
        first, *rest = [expr.slice(0, a, b) for a, b in parts if a < b]
        return first.concat(rest)

    node = _last(graph, "carried_scan")
    _reread(node, len(node.inputs) - 1, turned)


def _reread(node: Node, operand: int, change: Callable[[WeightExpr, Node], WeightExpr]) -> None:
    weight = node.operand(operand).producer
    before = weight.attrs["expr"]
    weight.attrs["expr"] = change(before, node)
    assert str(weight.attrs["expr"]) != str(before)
