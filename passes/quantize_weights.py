"""quantize_weights:  linear(x, W) -> quantized_linear(x, W){format},  and likewise embedding, experts and head_products

T tokens, K inner, N outer.  x: [T, K], W: [N, K].  The fact "quantize" says which format serves the linears, the
embedding and lm_head (the linear over the rows that need logits); without it nothing is rewritten. Experts and
head_products have the format of linears. The linear that a route reads stays: it is small, and a rounded logit may
choose another expert.

The rewrite is the same for all targets: the graph says what is rounded and how, and the target packs the weights.
"""

from __future__ import annotations

from typing import Any

from tensorwright.engine_format.weight_formats import MAX_WHOLE_ROW, QuantizeSpec, WeightFormat
from tensorwright.errors import UnsupportedModelError
from tensorwright.ir import Graph, Node, Value
from tensorwright.ir.ops import kind_of, matrices_of
from tensorwright.passes.rewriting.rewriter import make_node, splice


def quantize_weights(graph: Graph) -> int:
    """Returns how many ops were rewritten. An op on a constant, not on a weight of the checkpoint, does not change.

    Raises UnsupportedModelError for a product whose rows are too long for its format.
    """
    spec = graph.facts.quantize
    if spec is None:
        return 0
    inserted: dict[int, list[Node]] = {}
    forward = {}
    users = graph.users()
    for node in graph.nodes:
        fmt = format_for(node, spec)
        if fmt is None or chooses_experts(node, users):
            continue
        refuse_long_rows(node, fmt)
        attrs: dict[str, Any] = {**(node.attrs if node.op == "experts" else {}), "format": fmt}
        if node.op == "embedding":
            attrs = {**attrs, "scale": float(node.attrs.get("scale", 1.0))}
        kind = (node.output.dtype, node.output.shape)
        new = make_node(graph, f"quantized_{node.op}", node.inputs, attrs, [kind], node.scope, node.output.name)
        inserted[id(node)] = [new]
        forward[node.output] = new.output
    splice(graph, inserted, forward)
    return len(forward)


def refuse_long_rows(node: Node, fmt: WeightFormat) -> None:
    """Refuses rows whose sums may not fit in 32 bits. An embedding sums nothing, so its rows may have any length."""
    if node.op == "embedding" or fmt.kind != "int" or fmt.group != 0:
        return
    for weight in matrices_of(node):
        columns = int(weight.shape[-1])
        if columns > MAX_WHOLE_ROW:
            raise UnsupportedModelError(
                f"w8a8 takes matrices of at most {MAX_WHOLE_ROW} columns, the sums of longer rows need not fit 32 "
                f"bits; %{weight.name} has {columns}; quantize to int8, which has a scale for each group"
            )


def chooses_experts(node: Node, users: dict[Value, list[Node]]) -> bool:
    """Returns whether a linear is read by routes alone, if need be after element by element operations."""
    readers = users.get(node.outputs[0], [])
    return bool(readers) and all(
        reader.op == "route" or (kind_of(reader.op) == "elementwise" and chooses_experts(reader, users))
        for reader in readers
    )


def format_for(node: Node, spec: QuantizeSpec) -> WeightFormat | None:
    """Returns the format that a node's weights get; None if they stay."""
    if node.op not in ("linear", "embedding", "experts", "head_products"):
        return None
    if any(weight.node is None or weight.node.op != "weight" for weight in matrices_of(node)):
        return None
    if node.op == "embedding":  # a table of positions is small, and its rows add to every activation
        ids = node.inputs[1]
        return spec.embedding if ids is not None and ids.name == "token_ids" else None
    return spec.lm_head if node.output.shape[0] == "rows" else spec.linears
