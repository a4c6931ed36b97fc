"""Lowered graphs of latent attention with one thing wrong.

Like family_mutations.py: no shape changes, and each fails if the graph has nothing to break.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tensorwright.ir import Graph, Node
from tensorwright.ir.weights import Concat, WeightExpr


def flatten_latent_norm(graph: Graph) -> None:
    """The norm of the latents in the last layer loses its weight."""
    norm = _norms(graph)[-1]
    ones = np.ones(norm.inputs[1].shape, np.float32)
    types = [("float32", norm.inputs[1].shape)]
    norm.inputs[1] = graph.add("constant", (), {"value": ones}, types, before=norm).output


def norm_narrower_latents(graph: Graph) -> None:
    """The last two columns of every latent stay as they are: they are taken for columns that rotate."""
    for norm in _norms(graph):
        weight = norm.inputs[1].node
        width = norm.inputs[1].shape[0] - 2
        attrs = {**weight.attrs, "expr": weight.attrs["expr"].slice(0, 0, width)}
        norm.inputs[1] = graph.add("weight", (), attrs, [("float32", (width,))], before=norm).output


def turn_no_latents(graph: Graph) -> None:
    """The columns behind the latents do not rotate, neither in q nor in the cache."""
    for write in _matching(graph, "latent_kv_write"):
        assert write.inputs[3] is not None
        write.inputs[3] = None


def keep_latent_pairs(graph: Graph) -> None:
    """What rotates in the cache keeps its order in the last layer: neighbours where the kernel turns halves."""
    _keep_pairs(_norms(graph)[-1].inputs[0].node)


def keep_query_pairs(graph: Graph) -> None:
    """The same of q."""
    _keep_pairs(_matching(graph, "latent_kv_write")[-1].inputs[1].node)


def turn_up_k(graph: Graph) -> None:
    """Every head of the last layer makes its q with the matrix of the next head."""
    _change(graph, _matching(graph, "head_products")[-2], _next_head)


def turn_up_v(graph: Graph) -> None:
    """Every head of the last layer makes its result with the matrix of the next head."""
    _change(graph, _matching(graph, "head_products")[-1], _next_head)


def _next_head(expr: WeightExpr) -> WeightExpr:
    return expr.slice(0, 1, 4).concat([expr.slice(0, 0, 1)])


def _norms(graph: Graph) -> list[Node]:
    """The norms of the latents, which are a part of a row."""
    return _matching(graph, "rms_norm_columns")


def _keep_pairs(linear: Node | None) -> None:
    assert linear is not None
    assert linear.op == "matmul"
    weight = linear.inputs[1].node
    permuted = weight.attrs["expr"].part  # the reshape to a matrix is the last step
    assert isinstance(permuted, Concat)
    kept, moved = permuted.parts
    weight.attrs["expr"] = Concat((kept, moved.part.part.part), permuted.dim).reshape(weight.output.shape)


def _change(graph: Graph, node: Node, change: Callable[[WeightExpr], WeightExpr]) -> None:
    weight = node.inputs[1].node
    attrs = {**weight.attrs, "expr": change(weight.attrs["expr"])}
    types = [(weight.output.dtype, weight.output.shape)]
    node.inputs[1] = graph.add("weight", (), attrs, types, before=node).output


def _matching(graph: Graph, op: str) -> list[Node]:
    found = graph.find(op)
    assert found, f"the graph has no {op}"
    return found
