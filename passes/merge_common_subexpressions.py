"""merge_common_subexpressions:  two nodes with the same op, operands and attributes -> the first one

Weights with the same expression and type merge: a tied embedding becomes one weight with two users.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorwright.ir import Graph, Node, Value


def merge_common_subexpressions(graph: Graph) -> int:
    """Returns how many nodes were removed."""
    first: dict[Any, Node] = {}
    merged: dict[Value, Value] = {}
    kept: list[Node] = []
    for node in graph.nodes:
        node.inputs = [None if v is None else merged.get(v, v) for v in node.inputs]
        twin = node if node.op == "input" else first.setdefault(key(node), node)
        if twin is node:
            kept.append(node)
        else:
            merged.update(zip(node.outputs, twin.outputs, strict=True))
    count = len(graph.nodes) - len(kept)
    graph.nodes = kept
    graph.outputs = [merged.get(v, v) for v in graph.outputs]
    return count


def key(node: Node) -> Any:
    """Returns a key that is equal exactly for nodes that compute the same values with the same types."""
    operands = tuple(None if v is None else id(v) for v in node.inputs)
    types = tuple((v.dtype, v.shape) for v in node.outputs)
    return node.op, operands, types, _frozen(node.attrs)


def _frozen(attr: Any) -> Any:
    if isinstance(attr, dict):
        return tuple(sorted((k, _frozen(v)) for k, v in attr.items()))
    if isinstance(attr, list | tuple):
        return tuple(_frozen(v) for v in attr)
    if isinstance(attr, np.ndarray):
        return "array", str(attr.dtype), attr.shape, attr.tobytes()
    # In Python 1, 1.0 and True are equal, and so are 0.0 and -0.0, but they are different constants.
    return type(attr).__name__, repr(attr) if isinstance(attr, float) else attr
