"""Lowered graphs with one thing wrong of families with layer norms, plain MLPs and partly rotated heads.

Like family_mutations.py: each function breaks a graph in place, changes no shape, and fails if there is nothing to
break.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from mutations import scale_frequencies, shift_head_map, swap_gate_and_up, untie_head

from tensorwright.ir import Graph, Node
from tensorwright.ir.weights import Ref, WeightExpr

__all__ = ["scale_frequencies", "shift_head_map", "swap_gate_and_up", "untie_head"]


def drop_norm_biases(graph: Graph) -> None:
    """Layer norms lose their biases."""
    for node in _matching(graph, lambda n: n.op == "layer_norm" and n.inputs[2] is not None):
        node.inputs[2] = None


def flatten_layer_norm(graph: Graph) -> None:
    """The last layer norm before the final one loses its weight."""
    _flatten(graph, _row_norms(graph)[-2])


def keep_the_mean(graph: Graph) -> None:
    """The final norm divides by the root of the mean square, without taking the mean off; its bias stays."""
    node = _row_norms(graph)[-1]
    x, w, bias, residual = node.inputs
    node.op, node.inputs = "rms_norm", [x, w, residual]
    node.attrs = {k: node.attrs[k] for k in ("eps", "weight_offset", "buffers")}
    (user,) = graph.users()[node.outputs[0]]
    y = node.outputs[0]
    attrs = {"program": "x0 w add", "buffers": node.attrs["buffers"][:1]}
    operands = [y, None, None, None, bias]
    sum_ = graph.add("elementwise", operands, attrs, [(y.dtype, y.shape)], scope=node.scope, before=user).output
    user.inputs[0] = sum_


def enlarge_norm_epsilon(graph: Graph) -> None:
    """eps of every layer norm times 1000."""
    for node in _row_norms(graph):
        node.attrs["eps"] *= 1000


def drop_norm_residual(graph: Graph) -> None:
    """The last layer norm with a residual forgets it: x is added to itself."""
    node = _matching(graph, lambda n: n.op == "layer_norm" and n.inputs[3] is not None)[-1]
    node.inputs[3] = node.inputs[0]


def share_parallel_norms(graph: Graph) -> None:
    """The norm before the last MLP takes the weight of the one before attention, of the same stream."""
    attention, mlp = [n for n in _row_norms(graph) if ".1." in n.scope][:2]
    mlp.inputs[1] = attention.inputs[1]


def flatten_query_head_norms(graph: Graph) -> None:
    """The norms of q's heads in the last layer lose their weights."""
    _flatten(graph, _head_norms(graph)[-2])


def flatten_key_head_norms(graph: Graph) -> None:
    """The norms of k's heads in the last layer lose their weights."""
    _flatten(graph, _head_norms(graph)[-1])


def share_head_norms(graph: Graph) -> None:
    """Every head of q in the last layer gets the norm of the first."""
    node = _head_norms(graph)[-2]
    width, heads = node.attrs["width"], node.attrs["heads"]

    def repeat(expr: WeightExpr) -> WeightExpr:
        first = expr.slice(0, 0, width)
        return first.concat([first] * (heads - 1), 0)

    _change_weight(graph, node, repeat)


def drop_qkv_bias(graph: Graph) -> None:
    """The last fused projection to q, k and v loses its bias."""
    write = _matching(graph, lambda n: n.op == "rotary_kv_write")[-1]
    assert write.inputs[0].node.inputs[2] is not None
    write.inputs[0].node.inputs[2] = None


def drop_output_bias(graph: Graph) -> None:
    """The last projection of attention's output loses its bias."""
    _biased(graph)[-3].inputs[2] = None


def drop_up_bias(graph: Graph) -> None:
    """The last MLP's first matrix loses its bias."""
    _biased(graph)[-2].inputs[2] = None


def drop_down_bias(graph: Graph) -> None:
    """The last MLP's second matrix loses its bias."""
    _biased(graph)[-1].inputs[2] = None


def use_tanh_gelu(graph: Graph) -> None:
    """gelu approximated by tanh in place of the exact one."""
    _replace_word(graph, "gelu", "gelu_tanh")


def use_exact_gelu(graph: Graph) -> None:
    """gelu by erf in place of its approximation by tanh."""
    _replace_word(graph, "gelu_tanh", "gelu")


def use_silu(graph: Graph) -> None:
    """silu in place of relu."""
    _replace_word(graph, "relu", "silu")


def spread_frequencies(graph: Graph) -> None:
    """The frequencies of the rotated pairs are those of a head that is rotated as a whole."""
    table = _matching(graph, lambda n: n.op == "rotary_table")[0]
    frequencies = table.inputs[1].node
    held = np.asarray(frequencies.attrs["value"], np.float64)
    step = math.log(held[1] / held[0]) / 4  # a quarter is rotated: steps of a whole head are four times finer
    frequencies.attrs["value"] = np.exp(step * np.arange(held.size)).astype(np.float32)


def rotate_one_pair_less(graph: Graph) -> None:
    """The last of the rotated pairs stays as it is."""
    table = _matching(graph, lambda n: n.op == "rotary_table")[0]
    value = np.array(table.inputs[1].node.attrs["value"])
    value[-1] = 0.0
    table.inputs[1].node.attrs["value"] = value


def take_rows_as_stored(graph: Graph) -> None:
    """The last matrix of q, k and v beside each other in every head is read as q, k and v of all heads in turn."""
    write = _matching(graph, lambda n: n.op == "rotary_kv_write")[-1]
    _change_weight(graph, write.inputs[0].node, lambda expr: Ref(next(iter(expr.refs()))))


def _matching(graph: Graph, wanted: Callable[[Node], bool]) -> list[Node]:
    found = [n for n in graph.nodes if wanted(n)]
    assert found, "the graph has nothing that this mutation could break"
    return found


def _row_norms(graph: Graph) -> list[Node]:
    return _matching(graph, lambda n: n.op == "layer_norm" and n.attrs["width"] == n.outputs[0].shape[-1])


def _head_norms(graph: Graph) -> list[Node]:
    return _matching(graph, lambda n: n.op == "layer_norm" and n.attrs["width"] < n.outputs[0].shape[-1])


def _biased(graph: Graph) -> list[Node]:
    return _matching(graph, lambda n: n.op == "matmul" and n.inputs[2] is not None)


def _flatten(graph: Graph, node: Node) -> None:
    shape = node.inputs[1].shape
    node.inputs[1] = graph.constant(np.ones(shape, np.float32), "float32", shape, before=node)


def _replace_word(graph: Graph, old: str, new: str) -> None:
    for node in _matching(graph, lambda n: n.op == "elementwise" and old in n.attrs["program"].split()):
        node.attrs["program"] = " ".join(new if word == old else word for word in node.attrs["program"].split())


def _change_weight(graph: Graph, node: Node, change: Callable[[WeightExpr], WeightExpr]) -> None:
    old = node.inputs[1].node
    attrs = {**old.attrs, "expr": change(old.attrs["expr"])}
    node.inputs[1] = graph.add("weight", (), attrs, [(old.output.dtype, old.output.shape)], before=node).output
