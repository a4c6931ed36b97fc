"""Engines with one thing wrong: functions that break a feature of a graph at stage "cached" or "lowered".

For tests that must be able to fail: an end-to-end comparison that stays green on a mutated graph is not looking. No
mutation changes a shape, so a memory plan stays valid. `mutate(graph, name)` gives a broken copy; NotApplicable says
that the model lacks the feature.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from tensorwright.ir import Graph, Node, Value
from tensorwright.ir.verify import verify

MATMULS = ("matmul", "linear")
NORM_WEIGHT = {"rms_norm": 1, "add_rms_norm": 2}


class NotApplicable(Exception):
    """The graph has nothing that this mutation could break."""


def mutate(graph: Graph, name: str) -> Graph:
    """A copy of `graph` with the mutation `name` of MUTATIONS applied, still legal."""
    broken = graph.clone()
    MUTATIONS[name](broken)
    verify(broken, graph.stage)
    return broken


def drop_biases(graph: Graph) -> None:
    """Every matmul loses its bias."""
    _each(graph, lambda n: n.op in MATMULS and len(n.inputs) > 2 and n.inputs[2] is not None, _drop_bias)


def _drop_bias(node: Node) -> None:
    node.inputs[2] = None


def drop_one_bias(graph: Graph) -> None:
    """Only the last matmul that has one loses its bias."""
    _drop_bias(_matching(graph, lambda n: n.op in MATMULS and len(n.inputs) > 2 and n.inputs[2] is not None)[-1])


def scale_frequencies(graph: Graph, factor: float = 1.02) -> None:
    """Rotary frequencies 2 % off: as if a rope scaling had been ignored."""
    for node in _matching(graph, lambda n: n.op == "rotary_table"):
        _replace_by_constant(graph, node, 1, node.inputs[1].constant * np.float32(factor))


def scale_rotary_table(graph: Graph, factor: float = 0.97) -> None:
    """cos and sin multiplied: as if the attention scaling of yarn had been lost."""
    for node in _matching(graph, lambda n: n.op == "rotary_table"):
        node.attrs["scale"] *= factor


def flatten_norms(graph: Graph) -> None:
    """Every norm's weight becomes ones."""
    for node in _matching(graph, lambda n: n.op in NORM_WEIGHT):
        _flatten(graph, node)


def flatten_final_norm(graph: Graph) -> None:
    _flatten(graph, _matching(graph, lambda n: n.op in NORM_WEIGHT)[-1])


def _flatten(graph: Graph, node: Node) -> None:
    at = NORM_WEIGHT[node.op]
    _replace_by_constant(graph, node, at, np.ones(node.inputs[at].shape, np.float32))


def enlarge_epsilon(graph: Graph) -> None:
    """eps of every norm times 1000."""
    for node in _matching(graph, lambda n: n.op in NORM_WEIGHT):
        node.attrs["eps"] *= 1000.0


def shift_head_map(graph: Graph) -> None:
    """Query head h reads the KV head of h + 1; nothing else changes (the output projection's columns move along)."""
    for write in _matching(graph, lambda n: n.op == "rotary_kv_write"):
        about = graph.facts.kv_layers[write.attrs.get("layer", write.attrs.get("kv_layer"))]
        if about.kv_heads == 1:
            raise NotApplicable("all query heads read the one KV head")
        step, rows = about.head_dim, write.attrs["heads"] * about.head_dim
        qkv = write.inputs[0].node
        for at, operand in enumerate(qkv.inputs[1:3], 1):
            if operand is not None:
                _change_expr(graph, qkv, at, partial(_roll_rows, step=step, rows=rows, total=operand.shape[0]))
        projection = _reader(graph, _reader(graph, write.outputs[0]).outputs[0])
        _change_expr(graph, projection, 1, partial(_roll_columns, step=step, columns=rows))


def _roll_columns(expr: Any, step: int, columns: int) -> Any:
    return expr.slice(1, step, columns).concat([expr.slice(1, 0, step)], 1)


def _roll_rows(expr: Any, step: int, rows: int, total: int) -> Any:
    """The first `rows` of `total` rows (or elements) rotated by `step`."""
    return expr.slice(0, step, rows).concat([expr.slice(0, 0, step), expr.slice(0, rows, total)], 0)


def untie_head(graph: Graph) -> None:
    """The head's rows move by one against the vocabulary: as if it were another matrix than the checkpoint's."""
    head = graph.outputs[0].node
    rows = head.inputs[1].shape[0]
    _change_expr(graph, head, 1, lambda e: _roll_rows(e, 1, rows - 1, rows))


def swap_gate_and_up(graph: Graph) -> None:
    """silu goes to the wrong half of the gated unit."""
    users = graph.users()

    def is_gated(node: Node) -> bool:
        feeds = node.op == "linear" and any(u.op == "swiglu" for u in users[node.outputs[0]])
        return feeds or (node.op == "matmul" and node.attrs["epilogue"] > 0)

    for node in _matching(graph, is_gated):
        rows = node.inputs[1].shape[0]
        _change_expr(graph, node, 1, lambda e, r=rows: _roll_rows(e, r // 2, r, r))


def scale_scores(graph: Graph, factor: float = 1.1) -> None:
    """Attention scores 10 % too large."""
    for node in _matching(graph, lambda n: n.op == "paged_attention"):
        node.attrs["scale"] *= factor


def drop_residual(graph: Graph) -> None:
    """The last norm with a residual forgets it: x is added to itself."""
    norm = _matching(graph, lambda n: n.op == "add_rms_norm" or (n.op == "rms_norm" and len(n.outputs) == 2))[-1]
    norm.inputs[1 if norm.op == "add_rms_norm" else 2] = norm.inputs[0]


def shorten_window(graph: Graph, window: int = 4) -> None:
    """Attention sees only the last few positions."""
    graph.facts.kv_layers = [replace(layer, window=window) for layer in graph.facts.kv_layers]
    for node in _matching(graph, lambda n: n.op == "paged_attention"):
        if "window" in node.attrs:
            node.attrs["window"] = window


def swap_layers(graph: Graph) -> None:
    """Two layers' MLP outputs use each other's down projection."""
    table: dict[tuple, list[Node]] = {}
    for node in graph.nodes:
        if node.op in MATMULS and node.scope.endswith("down_proj"):
            table.setdefault(node.inputs[1].shape, []).append(node)
    pairs = [nodes for nodes in table.values() if len(nodes) > 1]
    if not pairs:
        raise NotApplicable("no two layers with a down projection")
    first, second = pairs[0][:2]
    first.inputs[1], second.inputs[1] = _weight_before(graph, first, second), first.inputs[1]


def _weight_before(graph: Graph, first: Node, second: Node) -> Value:
    """The second layer's weight, defined early enough for the first."""
    node = second.inputs[1].node
    return graph.add("weight", (), node.attrs, [(node.output.dtype, node.output.shape)], before=first).output


MUTATIONS: dict[str, Callable[[Graph], None]] = {
    f.__name__: f
    for f in (
        drop_biases, drop_one_bias, scale_frequencies, scale_rotary_table, flatten_norms, flatten_final_norm,
        enlarge_epsilon, shift_head_map, untie_head, swap_gate_and_up, scale_scores, drop_residual, shorten_window,
        swap_layers,
    )
}  # fmt: skip


def _matching(graph: Graph, wanted: Callable[[Node], bool]) -> list[Node]:
    found = [n for n in graph.nodes if wanted(n)]
    if not found:
        raise NotApplicable("no such node")
    return found


def _each(graph: Graph, wanted: Callable[[Node], bool], change: Callable[[Node], None]) -> None:
    for node in _matching(graph, wanted):
        change(node)


def _reader(graph: Graph, value: Value) -> Node:
    (reader,) = graph.users()[value]
    return reader


def _replace_by_constant(graph: Graph, node: Node, at: int, array: np.ndarray) -> None:
    node.inputs[at] = graph.constant(array.astype(np.float32), "float32", array.shape, before=node)


def _change_expr(graph: Graph, node: Node, at: int, change: Callable[[Any], Any]) -> None:
    """`node` reads another weight of the same type; other users of the old one keep it."""
    old = node.inputs[at].node
    attrs = {**old.attrs, "expr": change(old.attrs["expr"])}
    node.inputs[at] = graph.add("weight", (), attrs, [(old.output.dtype, old.output.shape)], before=node).output
