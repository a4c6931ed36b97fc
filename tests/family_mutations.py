"""Lowered graphs with one thing wrong that only some families have. Like mutations.py: no shape changes.

Each function breaks a graph in place, and fails if the graph has nothing to break.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from mutations import (
    drop_biases,
    drop_one_bias,
    scale_frequencies,
    scale_scores,
    shift_head_map,
    swap_gate_and_up,
    untie_head,
)

from support.tiny_configs import LONGROPE
from tensorwright.ir import Graph, Node, Value
from tensorwright.ir.weights import Ref, WeightExpr
from tensorwright.plugins.matmul.op import EPILOGUES

__all__ = [
    "drop_biases",
    "drop_one_bias",
    "scale_frequencies",
    "scale_scores",
    "shift_head_map",
    "swap_gate_and_up",
    "untie_head",
]


def drop_window(graph: Graph) -> None:
    """Attention sees all positions where it should see the last few."""
    assert any(layer.window for layer in graph.facts.kv_layers)
    graph.facts.kv_layers = [replace(layer, window=0, chunked=False) for layer in graph.facts.kv_layers]


def widen_window(graph: Graph) -> None:
    """Windows one position too long."""
    assert any(layer.window for layer in graph.facts.kv_layers)
    layers = graph.facts.kv_layers
    graph.facts.kv_layers = [replace(layer, window=layer.window + 1 if layer.window else 0) for layer in layers]


def slide_chunks(graph: Graph) -> None:
    """Windows slide where they should begin at multiples of their length."""
    assert any(layer.chunked for layer in graph.facts.kv_layers)
    graph.facts.kv_layers = [replace(layer, chunked=False) for layer in graph.facts.kv_layers]


def swap_windows(graph: Graph) -> None:
    """The layers with a window and those without change places."""
    windows = {layer.window for layer in graph.facts.kv_layers}
    assert len(windows) == 2
    layers = graph.facts.kv_layers
    graph.facts.kv_layers = [replace(layer, window=sum(windows) - layer.window) for layer in layers]


def drop_attention_cap(graph: Graph) -> None:
    """Attention scores are not capped."""
    for node in _matching(graph, lambda n: n.op == "paged_attention" and n.attrs["softcap"] > 0):
        node.attrs["softcap"] = 0.0


def drop_sinks(graph: Graph) -> None:
    """No score beside those of the positions."""
    for node in _matching(graph, lambda n: n.op == "paged_attention" and n.inputs[5] is not None):
        node.inputs[5] = None
    graph.drop_dead()


def turn_sinks(graph: Graph) -> None:
    """Each head has the sink of another one."""
    for node in _matching(graph, lambda n: n.op == "paged_attention" and n.inputs[5] is not None):
        weight = node.inputs[5].node
        expr, heads = weight.attrs["expr"], node.inputs[5].shape[0]
        weight.attrs["expr"] = expr.slice(0, 1, heads).concat([expr.slice(0, 0, 1)], 0)


def drop_slopes(graph: Graph) -> None:
    """Scores do not fall with distance."""
    for node in _matching(graph, lambda n: n.op == "paged_attention" and n.inputs[6] is not None):
        node.inputs[6] = None
    graph.drop_dead()


def turn_slopes(graph: Graph) -> None:
    """Each head has the slope of another one."""
    nodes = _matching(graph, lambda n: n.op == "paged_attention" and n.inputs[6] is not None)
    for constant in {id(node.inputs[6]): node.inputs[6].node for node in nodes}.values():
        constant.attrs["value"] = np.roll(constant.attrs["value"], 1)


def scale_embedding(graph: Graph) -> None:
    """The embedding's scale is 2 % off."""
    for node in _matching(graph, lambda n: n.op == "embedding" and n.attrs["scale"] != 1.0):
        node.attrs["scale"] *= 1.02


def change_numbers(graph: Graph) -> None:
    """The first number of the last program that has one is 2 % off."""
    node = _matching(graph, lambda n: n.op == "elementwise" and any(map(_is_number, n.attrs["program"].split())))[-1]
    words = node.attrs["program"].split()
    at = next(i for i, word in enumerate(words) if _is_number(word))
    node.attrs["program"] = " ".join([*words[:at], repr(float(words[at]) * 1.02), *words[at + 1 :]])


def _is_number(word: str) -> bool:
    return word[-1].isdigit() and not word.startswith("x")


def drop_weight_offset(graph: Graph) -> None:
    """Norm weights stored as a difference from one are taken for the weights themselves."""
    for node in _matching(graph, lambda n: n.op == "rms_norm" and n.attrs["weight_offset"] == 1.0):
        node.attrs["weight_offset"] = 0.0


def use_exact_gelu(graph: Graph) -> None:
    """gelu by erf in place of its approximation by tanh."""
    for node in _matching(graph, lambda n: n.op == "matmul" and n.attrs["epilogue"] == EPILOGUES["gelu_tanh"]):
        node.attrs["epilogue"] = EPILOGUES["gelu"]


def flatten_query_norm(graph: Graph) -> None:
    """The norm of q in the last layer loses its weight."""
    _flatten(graph, _column_norms(graph)[-2])


def flatten_key_norm(graph: Graph) -> None:
    """The norm of k in the last layer loses its weight."""
    _flatten(graph, _column_norms(graph)[-1])


def norm_heads_apart(graph: Graph) -> None:
    """Each half of k is normalised by itself where the whole row should be."""
    node = _column_norms(graph)[-1]
    weight = node.inputs[1].node
    half = node.inputs[1].shape[0] // 2
    attrs = {**weight.attrs, "expr": weight.attrs["expr"].slice(0, 0, half)}
    node.inputs[1] = graph.add("weight", (), attrs, [("float32", (half,))], before=node).output
    node.attrs["heads"] *= 2


def _column_norms(graph: Graph) -> list[Node]:
    return _matching(graph, lambda n: n.op == "rms_norm_columns")


def _matching(graph: Graph, wanted: Callable[[Node], bool]) -> list[Node]:
    found = [n for n in graph.nodes if wanted(n)]
    assert found, "the graph has nothing that this mutation could break"
    return found


def _flatten(graph: Graph, node: Node) -> None:
    shape = node.inputs[1].shape
    node.inputs[1] = graph.constant(np.ones(shape, np.float32), "float32", shape, before=node)


def shift_fused_rows(graph: Graph) -> None:
    """The rows of the last fused qkv matrix move by one: as if its parts began elsewhere."""
    write = _matching(graph, lambda n: n.op == "rotary_kv_write")[-1]
    node = write.inputs[0].node
    weight = node.inputs[1].node
    rows, expr = node.inputs[1].shape[0], weight.attrs["expr"]
    attrs = {**weight.attrs, "expr": expr.slice(0, 1, rows).concat([expr.slice(0, 0, 1)], 0)}
    types = [(weight.output.dtype, weight.output.shape)]
    node.inputs[1] = graph.add("weight", (), attrs, types, before=node).output


def change_rope_factor(graph: Graph) -> None:
    """The slower half of the rotary frequencies, which scaling stretches, are stretched 10 % too far."""
    for node in _matching(graph, lambda n: n.op == "rotary_table"):
        frequencies = np.array(node.inputs[1].constant)
        frequencies[frequencies.size // 2 :] /= 1.1
        _replace_frequencies(graph, node, frequencies)


def drop_rope_scale(graph: Graph) -> None:
    """Cosines and sines lose their attention factor."""
    for node in _matching(graph, lambda n: n.op == "rotary_table" and n.attrs["scale"] != 1.0):
        node.attrs["scale"] = 1.0


def swap_rope_tables(graph: Graph) -> None:
    """The rotary tables of the two kinds of layer change places."""
    first, second = _matching(graph, lambda n: n.op == "rotary_table")
    frequencies = [np.array(node.inputs[1].constant) for node in (first, second)]
    scales = [node.attrs["scale"] for node in (first, second)]
    for node, other, scale in ((first, frequencies[1], scales[1]), (second, frequencies[0], scales[0])):
        _replace_frequencies(graph, node, other)
        node.attrs["scale"] = scale


def swap_long_factors(graph: Graph) -> None:
    """Short factors where the engine has long ones."""
    assert graph.facts.longrope["factors"] == "long"
    for node in _matching(graph, lambda n: n.op == "rotary_table"):
        frequencies = np.array(node.inputs[1].constant)
        ratio = np.divide(LONGROPE["long_factor"], LONGROPE["short_factor"])[: frequencies.size]
        _replace_frequencies(graph, node, frequencies * ratio)


def _replace_frequencies(graph: Graph, node: Node, frequencies: np.ndarray) -> None:
    shape = (frequencies.size,)
    node.inputs[1] = graph.constant(frequencies.astype(np.float32), "float32", shape, before=node)


def shift_positions(graph: Graph) -> None:
    """Every position reads the row of the next one."""
    node = _position_embedding(graph)
    rows = node.inputs[0].shape[0]
    _reread(graph, node, 0, lambda e: e.slice(0, 1, rows).concat([e.slice(0, 0, 1)], 0))


def forget_positions(graph: Graph) -> None:
    """Nothing is added for the position."""
    _position_embedding(graph).attrs["scale"] = 0.0


def _position_embedding(graph: Graph) -> Node:
    return _matching(graph, lambda n: n.op == "embedding" and n.attrs["ids"] == 1)[0]


def forget_transpose(graph: Graph) -> None:
    """The last square matrix that is stored as [inputs, outputs] is taken for [outputs, inputs]."""

    def is_square(node: Node) -> bool:
        weight = node.inputs[1] if node.op == "matmul" else None
        return weight is not None and weight.shape[0] == weight.shape[1]

    _reread(graph, _matching(graph, is_square)[-1], 1, lambda e: e.transpose())


def use_one_scale(graph: Graph) -> None:
    """Every layer scales its scores as the first one does."""
    nodes = _matching(graph, lambda n: n.op == "paged_attention")
    assert len({n.attrs["scale"] for n in nodes}) > 1
    for node in nodes:
        node.attrs["scale"] = nodes[0].attrs["scale"]


def approximate_gelu(graph: Graph) -> None:
    """gelu by its approximation by tanh in place of erf."""
    for node in _matching(graph, lambda n: n.op == "elementwise" and "gelu" in n.attrs["program"].split()):
        node.attrs["program"] = node.attrs["program"].replace("gelu", "gelu_tanh")


def drop_parallel_branch(graph: Graph) -> None:
    """What attention gives in the last layer does not reach the sum beside the MLP."""
    node = _matching(graph, lambda n: n.op == "matmul" and n.inputs[3] is not None)[-1]
    node.inputs[3] = None


def swap_parallel_norms(graph: Graph) -> None:
    """The MLP of the last layer reads attention's norm, and attention the MLP's."""
    names = ("ln_attn", "ln_mlp")
    norms = _matching(graph, lambda n: n.op == "layer_norm" and n.scope.endswith(names))[-2:]
    assert norms[0].scope != norms[1].scope
    norms[0].inputs[1], norms[1].inputs[1] = (_copy(graph, n, norms[0]) for n in (norms[1], norms[0]))


def _copy(graph: Graph, norm: Node, before: Node) -> Value:
    """Another node for a norm's weight, early enough for `before`."""
    weight = norm.inputs[1]
    return graph.add("weight", (), weight.node.attrs, [(weight.dtype, weight.shape)], before=before).output


def take_rows_as_stored(graph: Graph) -> None:
    """The rows of the last qkv matrix in the checkpoint's order, head by head."""
    write = _matching(graph, lambda n: n.op == "rotary_kv_write")[-1]
    _reread(graph, write.inputs[0].node, 1, lambda e: Ref(next(e.refs())))


def _reread(graph: Graph, node: Node, at: int, change: Callable[[WeightExpr], WeightExpr]) -> None:
    """`node` reads another weight of the same shape."""
    old = node.inputs[at]
    attrs = {**old.node.attrs, "expr": change(old.node.attrs["expr"])}
    assert attrs["expr"] != old.node.attrs["expr"]
    node.inputs[at] = graph.add("weight", (), attrs, [(old.dtype, old.shape)], before=node).output
