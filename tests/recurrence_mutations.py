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


def turn_channel_decays(graph: Graph) -> None:
    """Each channel of the last selective scan decays as the next one should."""
    _turn_channels(graph, lambda count: range(count - 2))


def turn_state_decays(graph: Graph) -> None:
    """Each state of the last selective scan decays as the next one of its channel should."""

    def turned(expr: WeightExpr, node: Node) -> WeightExpr:
        channels, (total,) = int(node.operand(0).shape[1]), node.operand(8).shape
        end = int(total) - 2 * channels
        parts = [expr.slice(0, 0, channels), expr.slice(0, end, int(total))]
        return expr.slice(0, channels, end).concat(parts)

    _reread(_last(graph, "carried_selective_scan"), 8, turned)


def turn_channel_skips(graph: Graph) -> None:
    """Each channel of the last selective scan adds its input as the next one should."""
    _turn_channels(graph, lambda count: range(count - 2, count - 1))


def turn_channel_steps(graph: Graph) -> None:
    """Each channel of the last selective scan has the step bias of the next one."""
    _turn_channels(graph, lambda count: range(count - 1, count))


def swap_reads_and_writes(graph: Graph) -> None:
    """The last selective scan reads its states by what it should write, and the other way round."""
    inputs = _last(graph, "carried_selective_scan").inputs
    assert inputs[2] is not inputs[3]
    inputs[2], inputs[3] = inputs[3], inputs[2]


def turn_delta_decay(graph: Graph) -> None:
    """Each head of the last delta rule decays as the next one should."""

    def turned(expr: WeightExpr, node: Node) -> WeightExpr:
        return expr.slice(0, 1, node.attrs["heads"]).concat([expr.slice(0, 0, 1)])

    _reread(_last(graph, "carried_delta_rule"), 7, turned)


def turn_key_decays(graph: Graph) -> None:
    """Each element of the keys of the last delta rule decays as the next one should: by the bias of its step."""

    def turned(expr: WeightExpr, node: Node) -> WeightExpr:
        return expr.slice(0, 1, node.attrs["n"]).concat([expr.slice(0, 0, 1)])

    rule = _last(graph, "carried_delta_rule")
    steps = rule.operand(1).producer
    assert steps.attrs["n"] > rule.attrs["heads"]
    _reread(steps, 2, turned)


def double_rate(graph: Graph) -> None:
    """The last delta rule takes back twice as much of each error."""
    _last(graph, "carried_delta_rule").attrs["beta_scale"] *= 2.0


def halve_rate(graph: Graph) -> None:
    """The last delta rule, which may take back more than an error, takes back at most the error."""
    node = _last(graph, "carried_delta_rule")
    assert node.attrs["beta_scale"] == 2.0
    node.attrs["beta_scale"] = 1.0


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


def turn_unit_decays(graph: Graph) -> None:
    """Each channel of the last gated unit decays as the next one should."""
    _turn_rows(graph, "carried_rg_lru", 7, lambda count: range(1))


def turn_input_gates(graph: Graph) -> None:
    """Each channel of the last gated unit has the bias of the next one's gate of the input."""
    _turn_rows(graph, "carried_rg_lru", 7, lambda count: range(1, 2))


def turn_decay_gates(graph: Graph) -> None:
    """Each channel of the last gated unit has the bias of the next one's gate of the decay."""
    _turn_rows(graph, "carried_rg_lru", 7, lambda count: range(2, 3))


def swap_unit_gates(graph: Graph) -> None:
    """The last gated unit takes the gate of its decay for that of its input, and the other way round."""
    inputs = _last(graph, "carried_rg_lru").inputs
    assert inputs[1] is not inputs[2]
    inputs[1], inputs[2] = inputs[2], inputs[1]


def turn_gate_heads(graph: Graph) -> None:
    """Each head of the last gate is made with the matrix of the next head."""

    def turned(expr: WeightExpr, node: Node) -> WeightExpr:
        heads = node.attrs["heads"]
        rows = int(node.operand(1).shape[0]) // heads
        return expr.slice(0, rows, heads * rows).concat([expr.slice(0, 0, rows)])

    _reread(_last(graph, "head_products"), 1, turned)


def turn_slopes(graph: Graph) -> None:
    """Each head of the last linear attention decays as the next one should."""

    def turned(expr: WeightExpr, node: Node) -> WeightExpr:
        return expr.slice(0, 1, node.attrs["heads"]).concat([expr.slice(0, 0, 1)])

    _reread(_last(graph, "carried_linear_attention"), 5, turned)


def swap_keys_and_queries(graph: Graph) -> None:
    """The last linear attention reads by keys and writes by queries."""
    rule = _last(graph, "carried_linear_attention")
    source = rule.operand(0).producer
    linear = source if source.op == "matmul" else source.operand(0).producer
    total = int(linear.outputs[0].shape[1])
    keys = rule.attrs["heads"] * rule.attrs["states"]

    def swapped(expr: WeightExpr, node: Node) -> WeightExpr:
        cuts = [(0, total - 2 * keys), (total - keys, total), (total - 2 * keys, total - keys)]
        first, *rest = [expr.slice(0, a, b) for a, b in cuts]
        return first.concat(rest)

    _reread(linear, 1, swapped)


def drop_sigmoid_gate(graph: Graph) -> None:
    """The gate of the last recurrent layer, a sigmoid, is one everywhere."""
    open_gates = {"x0 x1 sigmoid mul": "x0 x1 x1 sub add", "x0 sigmoid x1 mul": "x0 x0 sub x1 add"}
    gates = [n for n in graph.find("elementwise") if n.attrs["program"] in open_gates]
    gates[-1].attrs["program"] = open_gates[gates[-1].attrs["program"]]


def swap_joined_rows(graph: Graph) -> None:
    """The last rows that are joined side by side have their first two parts the other way round."""
    inputs = _last(graph, "concat").inputs
    assert inputs[0] is not inputs[1]
    assert inputs[0].shape == inputs[1].shape
    inputs[0], inputs[1] = inputs[1], inputs[0]


def swap_adapters(graph: Graph) -> None:
    """The first and the last call of shared blocks have each other's adapters of gate and up."""
    products = graph.find("matmul")
    narrowest = min(int(node.operand(0).shape[1]) for node in products)
    adapters = [node for node in products if node.operand(0).shape[1] == narrowest]
    alike = [node.operand(1).producer for node in adapters if node.output.shape == adapters[-1].output.shape]
    first, last = alike[0].attrs, alike[-1].attrs
    assert first["expr"] != last["expr"]
    first["expr"], last["expr"] = last["expr"], first["expr"]


def _turn_channels(graph: Graph, which: Callable[[int], range]) -> None:
    """Turns some of the rows of the last selective scan's weights by one channel. `which` gets the number of rows."""
    _turn_rows(graph, "carried_selective_scan", 8, which)


def _turn_rows(graph: Graph, op: str, operand: int, which: Callable[[int], range]) -> None:
    """Turns some of the rows of channels, of an operand of the last `op`, by one channel."""

    def turned(expr: WeightExpr, node: Node) -> WeightExpr:
        channels, (total,) = int(node.operand(0).shape[1]), node.operand(operand).shape
        parts = []
        for row in range(int(total) // channels):
            start, end = row * channels, (row + 1) * channels
            changed = row in which(int(total) // channels)
            cuts = [(start + 1, end), (start, start + 1)] if changed else [(start, end)]
            parts += [expr.slice(0, a, b) for a, b in cuts]
        return parts[0].concat(parts[1:])

    _reread(_last(graph, op), operand, turned)


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
