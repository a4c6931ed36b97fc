"""quantize_weights:  linear(x, W) -> quantized_linear(x, W){format},  and likewise embedding, experts and head_products

T tokens, K inner, N outer.  x: [T, K], W: [N, K].  The fact "quantize" says which format serves the linears, the
embedding and lm_head (the linear over the rows that need logits); without it nothing is rewritten. Experts and
head_products have the format of linears. The linear that a route reads stays: it is small, and a rounded logit may
choose another expert. Rules of the spec may give single weights of the checkpoint another format; all weights that one
node reads as its matrices, such as q, k and v or the experts of a layer, must have the same.

The rewrite is the same for all targets: the graph says what is rounded and how, and the target packs the weights.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tensorwright.engine_format.weight_formats import (
    MAX_WHOLE_ROW,
    Asked,
    Choice,
    QuantizeSpec,
    WeightFormat,
    format_name,
)
from tensorwright.errors import GraphError, InvalidOptionError, UnsupportedModelError
from tensorwright.ir import Graph, Node, Value
from tensorwright.ir.ops import kind_of, matrices_of
from tensorwright.passes.rewriting.rewriter import make_node, splice

QUANTIZED = "quantized_"
"""The beginning of the names of operations with quantized matrices."""
PRODUCTS = ("linear", "embedding", "experts", "head_products")


def quantize_weights(graph: Graph) -> int:
    """Returns how many ops were rewritten. An op on a constant, not on a weight of the checkpoint, does not change.

    Raises UnsupportedModelError for a product whose rows are too long for its format, and InvalidOptionError for rules
    that match no matrix, or that give the weights of one node different formats.
    """
    spec = graph.facts.quantize
    if spec is None:
        return 0
    inserted: dict[int, list[Node]] = {}
    forward = {}
    matrices = quantizable(graph)
    refuse_idle_rules(spec, matrices)
    for node in matrices:
        fmt = format_for(node, spec)
        if fmt is None or node.op.startswith(QUANTIZED):
            continue
        refuse_long_rows(node, fmt)
        refuse_sparse_matrices(node, fmt)
        attrs: dict[str, Any] = {**(node.attrs if node.op == "experts" else {}), "format": fmt}
        if node.op == "embedding":
            attrs = {**attrs, **node.attrs, "scale": float(node.attrs.get("scale", 1.0))}
        kind = (node.output.dtype, node.output.shape)
        new = make_node(graph, f"{QUANTIZED}{node.op}", node.inputs, attrs, [kind], node.scope, node.output.name)
        inserted[id(node)] = [new]
        forward[node.output] = new.output
    splice(graph, inserted, forward)
    return len(forward)


def quantizable(graph: Graph) -> list[Node]:
    """Returns the nodes of a graph at stage "cached" whose matrices can have a format, quantized ones too, in order."""
    users = graph.users()
    return [node for node in graph.nodes if _has_matrices(node) and not chooses_experts(node, users)]


def _has_matrices(node: Node) -> bool:
    """Returns whether a node multiplies with matrices of the checkpoint, or gathers tokens from one."""
    if node.op.removeprefix(QUANTIZED) not in PRODUCTS:
        return False
    if any(weight.node is None or weight.node.op != "weight" for weight in matrices_of(node)):
        return False
    if not node.op.endswith("embedding"):
        return True
    ids = node.inputs[1]  # A table of positions is small, and its rows add to every activation.
    return ids is not None and ids.name == "token_ids"


def weights_of(node: Node) -> list[str]:
    """Returns the names of the checkpoint's weights that a node's matrices are made of."""
    return list(dict.fromkeys(name for value in matrices_of(node) for name in value.producer.attrs["expr"].refs()))


def refuse_idle_rules(spec: QuantizeSpec, matrices: list[Node]) -> None:
    """Raises InvalidOptionError for rules that match no weight of the matrices."""
    if not spec.rules:
        return
    names = list(dict.fromkeys(name for node in matrices for name in weights_of(node)))
    idle = spec.table.idle(names)
    if idle:
        raise InvalidOptionError(
            f"quantize: {', '.join(idle[:5])} {'match' if len(idle) > 1 else 'matches'} no matrix that can be "
            f"quantized; names of such are {', '.join(names[:3])}"
        )


def refuse_sparse_matrices(node: Node, fmt: WeightFormat) -> None:
    """Refuses sparse weights of what is no linear: experts, the matrices of heads, and an embedding."""
    if fmt.sparse and node.op != "linear":
        names = weights_of(node)
        raise UnsupportedModelError(
            f"only matrices of linear layers can be 2:4 sparse, and {names[0]} is of {node.op.replace('_', ' ')}; "
            f"leave sparsity out, or give these a format of their own, as in {names[0]}={replace(fmt, sparse=False)}"
        )


def refuse_long_rows(node: Node, fmt: WeightFormat) -> None:
    """Refuses rows whose sums may not fit in 32 bits."""
    for weight in too_long(node, fmt):
        raise UnsupportedModelError(
            f"{fmt.family} takes matrices of at most {MAX_WHOLE_ROW} columns, the sums of longer rows need not fit 32 "
            f"bits; %{weight.name} has {weight.shape[-1]}; quantize to int8, which has a scale for each group"
        )


def too_long(node: Node, fmt: WeightFormat) -> list[Value]:
    """Returns the matrices of a node whose rows are too long for a format. An embedding sums nothing."""
    if node.op == "embedding" or not fmt.sums_whole_rows:
        return []
    return [weight for weight in matrices_of(node) if int(weight.shape[-1]) > MAX_WHOLE_ROW]


def chooses_experts(node: Node, users: dict[Value, list[Node]]) -> bool:
    """Returns whether a linear is read by routes alone, if need be after element by element operations."""
    readers = users.get(node.outputs[0], [])
    return bool(readers) and all(
        reader.op == "route" or (kind_of(reader.op) == "elementwise" and chooses_experts(reader, users))
        for reader in readers
    )


def format_for(node: Node, spec: QuantizeSpec) -> WeightFormat | None:
    """Returns the format that the matrices of a `quantizable` node get; None if they stay.

    Raises GraphError if the spec leaves it open.
    """
    fmt = asked_for(node, spec)
    if isinstance(fmt, Choice):
        raise GraphError(f"the format of {weights_of(node)[0]} is {fmt}, and must be chosen before")
    return fmt


def asked_for(node: Node, spec: QuantizeSpec) -> Asked:
    """Returns what a spec says of the matrices of a `quantizable` node."""
    if node.op.endswith("embedding"):
        part = spec.embedding
    else:
        part = spec.lm_head if node.output.shape[0] == "rows" else spec.linears
    if not spec.rules:
        return part
    found: dict[Asked, str] = {}
    for name in weights_of(node):
        found.setdefault(spec.format_of(name, part), name)
    if len(found) > 1:
        split = ", ".join(f"{name} {format_name(fmt)}" for fmt, name in found.items())
        raise InvalidOptionError(
            f"quantize: weights that are joined to one matrix or mixture must have one format: {split}; joined are "
            f"{', '.join(weights_of(node)[:6])}"
        )
    return next(iter(found))
