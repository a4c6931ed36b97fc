"""Finds the linears and embeddings that become part of the node after them; not a pass, part of lower_to_cpu."""

from __future__ import annotations

from tensorwright.ir import Graph, Node, Value
from tensorwright.ir.ops import kind_of
from tensorwright.passes.rewriting.elementwise_trees import number_of

LINEARS = ("linear", "quantized_linear")
EMBEDDINGS = ("embedding", "quantized_embedding")
HEAD_PRODUCTS = ("head_products", "quantized_head_products")


def find_folded(graph: Graph, users: dict[Value, list[Node]]) -> set[int]:
    """Finds linears that become part of the node after them: of a gate, or of an addition on at most one side."""
    folded: set[int] = set()
    for node in graph.nodes:
        takes_first = node.op == "mul" or kind_of(node.op) == "gate"
        candidates = node.inputs if node.op == "add" else node.inputs[:1] if takes_first else []
        wanted = EMBEDDINGS if is_scaling(node) else LINEARS if node.op != "mul" else ()
        for value in reversed(candidates):
            if value is None or value.node is None or value.node.op not in wanted or value in graph.outputs:
                continue
            if len(users[value]) == 1 and node.inputs.count(value) == 1:
                folded.add(id(value.node))
                break
    return folded


def is_scaling(node: Node) -> bool:
    """Returns whether a node multiplies by one number, which is the second operand (canonicalise_scalars)."""
    return node.op == "mul" and node.inputs[1] is not None and number_of(node.inputs[1]) is not None


def spreads_numbers(node: Node) -> bool:
    """Returns whether products of heads multiply by a constant: they copy one number of each head (flatten_head_gates).

    Such products are computed in float32 in every engine, where they are exact.
    """
    return node.op in HEAD_PRODUCTS and node.operand(1).constant is not None


def residual_adds(graph: Graph, folded: set[int]) -> set[int]:
    """Returns the nodes that have absorbed a folded linear or embedding. Such a node belongs to no tree."""
    return {id(n) for n in graph.nodes if any(v is not None and v.node and id(v.node) in folded for v in n.inputs)}
