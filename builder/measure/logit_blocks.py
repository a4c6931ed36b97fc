"""Computes a graph's logits some positions at a time, so that memory does not grow with the vocabulary.

    all positions:  ids -> hidden      the body: every node before the last product
    some positions: hidden -> logits   the head: the last product, and what is done to each logit

All positions go through the body at once. The head treats each position on its own, so it is run once for each block
of positions. Each block reads the head's matrix anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from tensorwright.builder.phases import Advance
from tensorwright.ir.graph import Graph, Node, Value
from tensorwright.ir.interpret import Weights, interpret
from tensorwright.ir.ops import find_spec
from tensorwright.ir.walk import Walk, in_step


def logit_blocks(
    graph: Graph,
    inputs: dict[str, Any],
    weights: Weights,
    rows: int,
    *,
    beside: Walk | None = None,
    told: Advance = lambda done, total: None,
) -> Iterator[np.ndarray]:
    """Yields the logits of one sequence as float32 [up to `rows`, vocab], in order; its arguments are `interpret`'s.

    beside: another run, which reads the checkpoint in step with the body and is then done. told: gets how many nodes
    of the body are done. The graph does not change.
    """
    body, head = split_head(graph)
    walk = Walk(body, inputs, weights, told)
    if beside is not None:
        in_step(walk, beside)
    (hidden,) = walk.finish()
    del walk
    if head is None:
        logits = as_rows(hidden)
        yield from (logits[start : start + rows] for start in range(0, len(logits), rows))
        return
    (entry,) = head.inputs
    for part in torch.split(hidden, rows, dim=hidden.dim() - 2):
        yield as_rows(*interpret(head, {entry.name: part}, weights))


def as_rows(logits: torch.Tensor) -> np.ndarray:
    """Returns one sequence's logits of any stage as [tokens, vocab] float32."""
    rows: np.ndarray = logits.reshape(-1, logits.shape[-1]).float().numpy()
    return rows


def split_head(graph: Graph) -> tuple[Graph, Graph | None]:
    """Returns the graph without its head, and the head alone, whose only input is what the body gives.

    The head is None, and the body the whole graph, where the logits are no product with elementwise nodes after it.
    """
    found = last_product(graph)
    if found is None:
        return graph, None
    index = graph.nodes.index(found)
    body, head = graph.clone(), graph.clone()
    body.outputs = [body.nodes[index].operand(0)]
    body.drop_dead()
    product = head.nodes[index]
    hidden = product.operand(0)
    entry = head.add("input", types=[(hidden.dtype, hidden.shape)], names=["hidden"], before=product)
    product.inputs[0] = entry.output
    head.drop_dead()
    head.nodes = [node for node in head.nodes if node.op != "input" or node is entry]
    return body, head


def last_product(graph: Graph) -> Node | None:
    """Returns the product that gives the logits, after which there are only elementwise nodes of one operand."""
    (value,) = graph.outputs
    while value.node is not None:
        node = value.node
        spec = find_spec(node.op, graph.stage)
        if spec is not None and spec.kind == "product":
            return node if _computed(node) == [node.operand(0)] and node.operand(0).rank >= 2 else None
        computed = _computed(node)
        if spec is None or spec.kind != "elementwise" or len(computed) != 1:
            return None
        (value,) = computed
    return None


def _computed(node: Node) -> list[Value]:
    """Returns the operands that no engine stores, each once."""
    return list(dict.fromkeys(value for value in node.inputs if value is not None and not value.is_stored))
