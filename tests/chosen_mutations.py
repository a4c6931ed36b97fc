"""Lowered graphs with one thing wrong of families that no pass was written for: Cohere, Nemotron, SmolLM3; and GLM.

Like family_mutations.py: no shape changes, and each fails if the graph has nothing to break.
"""

from __future__ import annotations

from typing import Any

from tensorwright.ir import Graph, Node
from tensorwright.ir.weights import Concat


def keep_query_pairs(graph: Graph) -> None:
    """The rows of q in the last layer keep their order: neighbours where the kernel turns halves."""
    _keep_pairs(graph, part=0, operand=1)


def keep_key_pairs(graph: Graph) -> None:
    """The same of k."""
    _keep_pairs(graph, part=1, operand=1)


def keep_query_bias_pairs(graph: Graph) -> None:
    """The same of q's bias: it belongs to rows that have moved."""
    _keep_pairs(graph, part=0, operand=2)


def keep_mean(graph: Graph) -> None:
    """Layer norms that do not take off the mean."""
    for node in _matching(graph, "layer_norm"):
        x, w, bias, residual = node.inputs
        assert bias is None, "an RMS norm has no bias"
        node.op, node.inputs = "rms_norm", [x, w, residual]
        node.attrs = {key: node.attrs[key] for key in ("eps", "weight_offset", "buffers") if key in node.attrs}


def drop_layer_norm_offset(graph: Graph) -> None:
    """Weights of layer norms stored as a difference from one are taken for the weights themselves."""
    for node in _matching(graph, "layer_norm"):
        assert node.attrs["weight_offset"] == 1.0
        node.attrs["weight_offset"] = 0.0


def drop_layer_norm_bias(graph: Graph) -> None:
    """The last layer norm loses its bias."""
    node = _matching(graph, "layer_norm")[-1]
    assert node.inputs[2] is not None
    node.inputs[2] = None


def forget_square(graph: Graph) -> None:
    """relu where its square belongs."""
    squares = [n for n in _matching(graph, "elementwise") if n.attrs["program"] == "x0 x0 mul"]
    assert squares, "nothing is squared"
    for node in squares:
        node.attrs["program"] = "x0 1.0 mul"


def turn_every_layer(graph: Graph) -> None:
    """q and k of the layers that must not turn do."""
    writes = _matching(graph, "rotary_kv_write")
    table, turned = next((n.inputs[1], n.attrs["rotary_dim"]) for n in writes if n.inputs[1] is not None)
    still = [n for n in writes if n.inputs[1] is None]
    assert still, "every layer turns"
    for node in still:
        node.inputs[1], node.attrs["rotary_dim"] = table, turned


def turn_no_layer(graph: Graph) -> None:
    """q and k do not turn in any layer."""
    for node in _matching(graph, "rotary_kv_write"):
        node.inputs[1], node.attrs["rotary_dim"] = None, 0


def _keep_pairs(graph: Graph, part: int, operand: int) -> None:
    node = _matching(graph, "rotary_kv_write")[-1].inputs[0].node
    assert node is not None
    assert node.op == "matmul"
    weight = node.inputs[operand].node
    joined = weight.attrs["expr"]
    assert isinstance(joined, Concat)
    parts: list[Any] = list(joined.parts)
    plain = next(iter(_refs(parts[part])))
    assert plain != parts[part], "its rows have not moved"
    parts[part] = plain
    attrs = {**weight.attrs, "expr": Concat(tuple(parts), joined.dim)}
    types = [(weight.output.dtype, weight.output.shape)]
    node.inputs[operand] = graph.add("weight", (), attrs, types, before=node).output


def _refs(expr: Any) -> Any:
    """The plain references inside `expr`."""
    inner = getattr(expr, "parts", None) or ((expr.part,) if hasattr(expr, "part") else ())
    if not inner:
        yield expr
    for each in inner:
        yield from _refs(each)


def _matching(graph: Graph, op: str) -> list[Node]:
    found = graph.find(op)
    assert found, f"the graph has no {op}"
    return found
