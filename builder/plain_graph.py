"""Takes quantization out of a cached graph, so that a build can ask for another, or cut the graph first."""

from __future__ import annotations

from dataclasses import replace

from tensorwright.ir.facts import QUANTIZATION
from tensorwright.ir.graph import Graph, Value
from tensorwright.ir.weights import without_scales


def plain_graph(graph: Graph) -> Graph:
    """Returns a copy of the graph before quantization: weights, the order of columns, the KV cache and what attention
    sees as the model has them, no channel scales, and products that read all columns."""
    from tensorwright.passes.limit_attention import show_all
    from tensorwright.passes.limit_kv_cache import keep_all
    from tensorwright.passes.order_columns import restore_order
    from tensorwright.passes.quantize_weights import QUANTIZED
    from tensorwright.passes.sparsify_prefill import see_all

    graph = graph.clone()
    restore_order(graph)
    join_columns(graph)
    show_all(graph)
    keep_all(graph)
    see_all(graph)
    for node in graph.find("weight"):
        node.attrs["expr"] = without_scales(node.attrs["expr"])
    for node in graph.nodes:
        if not node.op.startswith(QUANTIZED):
            continue
        node.op = node.op.removeprefix(QUANTIZED)
        node.attrs = {name: value for name, value in node.attrs.items() if name != "format"}
        node.output.name = node.output.name.rpartition(".")[0]  # quantize_weights added a number to it
    graph.restart_names()
    facts = graph.facts
    facts.kv_layers = [replace(layer, dtype="") for layer in facts.kv_layers]
    facts.clear(*QUANTIZATION)
    return graph


def join_columns(graph: Graph) -> None:
    """Undoes keep_outlier_columns: products read all columns of their inputs."""
    from tensorwright.passes.rewriting.rewriter import splice

    users = graph.users()
    forward: dict[Value, Value] = {}
    for node in graph.find("split_columns"):
        rest, taken = node.outputs
        forward[rest] = node.operand(0)
        for kept in users[taken]:
            for total in users[kept.output]:
                forward[total.output] = total.operand(1)  # the product that is rounded
    splice(graph, {}, forward)
