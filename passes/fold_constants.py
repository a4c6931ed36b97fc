"""fold_constants:  op(constants)  ->  constant

Only small results of fixed shape are folded. The interpreter computes them, in the op's own type.
Weights are not constants here: they stay in the checkpoint until the engine is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensorwright.ir import Graph, Node, Value
from tensorwright.ir.graph import SOURCES
from tensorwright.passes.rewriting.rewriter import make_node, splice

LIMIT = 1 << 16
"""The most elements of a folded result: enough for inverse frequencies, too few for tables."""


def fold_constants(graph: Graph) -> int:
    """Returns how many nodes were replaced by their value."""
    folded: dict[Value, Value] = {}
    inserted: dict[int, list[Node]] = {}
    for node in graph.nodes:
        if not can_fold(node, folded):
            continue
        constant = make_node(graph, "constant", (), {"value": evaluate(node, folded)}, types(node), node.scope)
        folded[node.output] = constant.output
        inserted[id(node)] = [constant]
    if inserted:
        splice(graph, inserted, folded)
    return len(inserted)


def types(node: Node) -> list[tuple[str, Any]]:
    return [(v.dtype, v.shape) for v in node.outputs]


def can_fold(node: Node, folded: Mapping[Value, Value]) -> bool:
    """Returns whether a node has one result, of known and small size, and constant operands only."""
    if node.op in SOURCES or len(node.outputs) != 1:
        return False
    size = 1
    for dim in node.output.shape:
        if not isinstance(dim, int):
            return False
        size *= dim
    constants = all(v is not None and (v in folded or v.constant is not None) for v in node.inputs)
    return size <= LIMIT and constants


def evaluate(node: Node, folded: Mapping[Value, Value]) -> Any:
    """Returns an array even for rank 0: a Python number would not take part in type promotion as a tensor does."""
    from tensorwright.ir.interpret import interpret  # imports torch, so only when there is something to fold

    graph = Graph("fold", "fused")
    operands: list[Value | None] = []
    for value in map(node.operand, range(len(node.inputs))):
        source = folded.get(value, value)
        operands.append(graph.constant(source.constant, source.dtype, source.shape))
    twin = graph.add(node.op, operands, node.attrs, [(node.output.dtype, node.output.shape)])
    graph.outputs = [twin.output]
    (result,) = interpret(graph, {}, _no_weights)
    return (result.float() if node.output.dtype == "bfloat16" else result).numpy()  # graphs hold bfloat16 in float32


def _no_weights(expr: object) -> Any:
    raise AssertionError("a constant depends on no weight")
