"""Computes what a target without its device would: the lowered graph in the interpreter, with the target's rounding.

On targets other than cpu all activations have one type A. A graph at stage "cached" says float32 everywhere; `narrowed`
returns one that says A. The interpreter then rounds after each op, as the plugin form of ONNX does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorwright.builder.measure.accuracy import Measurement, measure_logits
from tensorwright.ir.graph import STORED, Graph, Node, Value
from tensorwright.ir.ops import find_spec
from tensorwright.models.checkpoint import Checkpoint

if TYPE_CHECKING:
    from tensorwright.builder.measure.streamed_weights import StreamedWeights
    from tensorwright.builder.target.interface import Graphs

MEASURED_ON = "graph interpreter"


def measure_on_interpreter(
    graphs: Graphs, checkpoint: Checkpoint, task: Measurement, act_dtype: str, ranks: int = 1
) -> dict[str, Any]:
    """Returns the accuracy record of graphs.lowered in `act_dtype`; "measured_on" says that no engine ran. ranks: how
    many share the engine, whose sums are not measured."""
    from tensorwright.builder.measure.streamed_weights import StreamedWeights

    weights = StreamedWeights(checkpoint)

    def run(ids: list[int], rows: int) -> Iterator[np.ndarray]:
        return interpreted_logits(graphs.lowered, checkpoint, ids, act_dtype, rows, weights)

    measured_on = MEASURED_ON if ranks == 1 else f"{MEASURED_ON}, as one rank"
    return measure_logits(task, checkpoint, graphs.traced, graphs.lowered, run, measured_on=measured_on)


def interpreted_logits(
    lowered: Graph, checkpoint: Checkpoint, ids: list[int], act_dtype: str, rows: int, weights: StreamedWeights
) -> Iterator[np.ndarray]:
    """Yields [up to `rows`, vocab] float32 of one sequence in one step. Memory stays near one layer's weights.

    The weights are quantized by the packer of the CPU engine, whose bits are those of quantize.py.
    """
    from tensorwright.builder.measure.logit_blocks import logit_blocks
    from tensorwright.builder.measure.reference import gather_embeddings
    from tensorwright.ir.ragged import RaggedAdapter

    graph = narrowed(lowered, act_dtype)
    inputs = RaggedAdapter(graph, [ids]).inputs([len(ids)])
    inputs.update(gather_embeddings(graph, checkpoint, inputs["token_ids"]))
    inputs = {value.name: _of_type(value, inputs[value.name]) for value in graph.inputs}
    with weights:
        yield from logit_blocks(graph, inputs, weights, rows)


def _of_type(value: Value, data: Any) -> Any:
    """Returns the data in the type of `value`, since gathered rows arrive in float32."""
    if value.is_cache:
        return data
    from tensorwright.ir.interpret_ops import torch_dtype

    return data.to(torch_dtype(value.dtype))


def narrowed(graph: Graph, act_dtype: str) -> Graph:
    """Returns a copy of a graph at stage "cached" whose activations, matrices and caches are of `act_dtype`.

    Rotary tables, weights of norms and sinks stay float32. Sums before a norm become ops of their own, because the norm
    reads the sums as they are stored.
    """
    graph = graph.clone()
    graph.nodes = [part for node in graph.nodes for part in _split_sum(node)]
    graph.facts.dtype = act_dtype
    graph.facts.kv_layers = [replace(layer, dtype=layer.dtype_or(act_dtype)) for layer in graph.facts.kv_layers]
    _separate_weights(graph)
    users = graph.users()
    for node in graph.nodes:
        for value in node.outputs:
            if value.dtype == "float32" and not _stays_wide(node, value, users[value]):
                value.dtype = act_dtype
                if node.op == "cast":
                    node.attrs["dtype"] = act_dtype
    return graph


def _separate_weights(graph: Graph) -> None:
    """Splits a weight that is read in float32 and in A (a table that is also quantized as lm_head) into two."""
    users = graph.users()
    for node in graph.find("weight"):
        value = node.output
        wide = [user for user in users[value] if _reads_wide(user, value)]
        if not wide or len(wide) == len(users[value]):
            continue
        twin = graph.add("weight", (), dict(node.attrs), [(value.dtype, value.shape)], scope=node.scope, before=node)
        for user in wide:
            user.inputs = [twin.output if v is value else v for v in user.inputs]


def _split_sum(node: Node) -> list[Node]:
    if node.op not in ("add_rms_norm", "add_layer_norm"):
        return [node]
    y, total = node.outputs
    summed = Node("add", node.inputs[:2], {}, [total], node.scope)
    norm = Node(node.op.removeprefix("add_"), [total, *node.inputs[2:]], node.attrs, [y], node.scope)
    total.node, y.node = summed, norm
    return [summed, norm]


def _stays_wide(node: Node, value: Value, users: list[Node]) -> bool:
    if node.op == "rotary_table" or (node.op == "constant" and value.rank == 0):
        return True
    if node.op not in STORED:
        return False
    return any(_reads_wide(user, value) for user in users)


def _reads_wide(user: Node, value: Value) -> bool:
    record = find_spec(user.op, "cached")
    return record is not None and not record.variadic and record.operands[user.inputs.index(value)].wide
