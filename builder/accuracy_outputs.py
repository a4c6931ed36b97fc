"""How far each quantized matmul's output is from that of the checkpoint's weights, on a text's real activations.

The cached graph runs in the reference interpreter; every product is repeated with the weights as they are. Weights are
read when used and large matrices in parts, so memory stays near one layer.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from tensorwright.builder.accuracy_reference import gather_embeddings, split_large_linears
from tensorwright.builder.emit.quantized_weights import QuantizingWeights, RelativeError
from tensorwright.builder.ir.graph import Graph, Node, Value
from tensorwright.builder.ir.interpret import Weights, run
from tensorwright.builder.ir.ragged import RaggedAdapter
from tensorwright.builder.quantization_record import Place, by_name, place_of
from tensorwright.models.checkpoint import Checkpoint

TOKENS = 32
QUANTIZED = ("quantized_linear", "weight_only_linear")


def output_errors(cached: Graph, checkpoint: Checkpoint, ids: list[int]) -> dict[str, list[float | None]]:
    """Root of the mean squared error over that of the output (bias left out), by place as in quantization_record.py.

    Over the first TOKENS of `ids`, one sequence. The graph stays as it is. What reaches a matmul has passed through
    the quantized ones before it.
    """
    graph, ids = cached.clone(), ids[:TOKENS]
    inputs = RaggedAdapter(graph, [ids]).inputs([len(ids)])
    inputs.update(gather_embeddings(graph, checkpoint, inputs["token_ids"]))
    inputs = {value.name: inputs[value.name] for value in graph.inputs}
    split_large_linears(graph)
    weights = QuantizingWeights(checkpoint)
    totals: dict[Place, RelativeError] = {}
    for node, x, y in products(graph, inputs, weights):
        error, size = product_error(node, x, y, weights)
        totals.setdefault(place_of(node), RelativeError()).add(error, size)
    return by_name({place: total.value for place, total in totals.items()})


def products(graph: Graph, inputs: dict, weights: Weights) -> Iterator[tuple[Node, torch.Tensor, torch.Tensor]]:
    """(node, input, output) of every quantized linear, as they are computed."""
    left: dict[Value, int] = {}
    for node in [node for node in graph.nodes if node.op in QUANTIZED]:
        assert node.inputs[0] is not None
        left[node.inputs[0]] = left.get(node.inputs[0], 0) + 1
    held: dict[Value, torch.Tensor] = {}
    for value, data in run(graph, inputs, weights):
        if value in left:
            held[value] = data
        made_by = value.node
        if made_by is not None and made_by.op in QUANTIZED:
            x = made_by.inputs[0]
            assert x is not None
            left[x] -= 1
            yield made_by, held[x] if left[x] else held.pop(x), data


def product_error(node: Node, x: torch.Tensor, y: torch.Tensor, weights: Weights) -> tuple[float, float]:
    """Sums of squares: of the error, and of the output of the weights as they are."""
    _, w, bias = (*node.inputs, None)[:3]
    assert w is not None
    assert w.node is not None
    exact = x.float() @ weights(w.node.attrs["expr"]).float().T
    got = y.float()
    if bias is not None and bias.node is not None:
        got = got - weights(bias.node.attrs["expr"]).float()
    return float((got - exact).double().square().sum()), float(exact.double().square().sum())
