"""Adds what proposes tokens to a plan of target cuda: calls that compute features, and the calls of the heads.

The graph is that of join_draft_heads at stage "cached": its outputs are the model's logits and features, the heads'
logits and their own features. Three parts of it are started by themselves: the model up to its logits, what only the
features need, and the heads.

Features stay on the GPU, as one page tensor more of a cache group: a row of C columns of type A for each slot. The
model writes the feature of a token to the token's slot. The heads read those of their tokens, and write their own
feature of a row to the slot of the position behind it, which the next pass computes. So copies of blocks copy features.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tensorwright.builder.emit.cuda.addresses import PAGES, PAGES_OF_A_LAYER, Address
from tensorwright.builder.emit.cuda.calls import OpCall
from tensorwright.builder.emit.cuda.emitter import CudaEmitter
from tensorwright.builder.emit.cuda.plan_file import KvLayerPages
from tensorwright.engine_format.dtypes import ITEM_BYTES
from tensorwright.errors import LoweringError
from tensorwright.ir.graph import CACHES, SOURCES, Graph, Node, Value
from tensorwright.ir.verify import FEATURES
from tensorwright.plugins.draft_features import launch as put_rows
from tensorwright.plugins.gather_rows import launch as gather_rows
from tensorwright.plugins.gpu.launch import Tensor

MAX_SLOTS = 2**31 - 1
"""The rows of the tensor of features in a launch, whatever the pool has: a slot is an int32."""


@dataclass(frozen=True)
class Parts:
    """The nodes of a graph, in order, without inputs, weights and constants: `features` are needed by the features
    alone, and `heads` are those of the heads. Both are empty in a graph without heads."""

    model: list[Node]
    features: list[Node]
    heads: list[Node]


@dataclass(frozen=True)
class EmittedHeads:
    """The heads of a plan. first_feature and first: the numbers of the first call that computes features, and of the
    first one of the heads. group: the cache group that holds features. width: the columns of a feature. attend: whether
    the heads have keys and values. logits: theirs, float32. draws: the first call that draws tokens from them, and the
    tokens; None where the host draws them."""

    first_feature: int
    first: int
    group: int
    width: int
    attend: bool
    logits: Tensor
    draws: tuple[int, Tensor] | None

    def pages(self, dtype: str, block_size: int) -> KvLayerPages:
        """Returns the page tensor of features."""
        return KvLayerPages(self.group, (block_size * self.width * ITEM_BYTES[dtype],))


def parts_of(graph: Graph) -> Parts:
    """Returns the parts of a graph, with one output or with the four of a joined graph."""
    model, features, heads = (_needed(graph, graph.outputs[a:b]) for a, b in ((0, 1), (1, 2), (2, 4)))
    nodes = [node for node in graph.nodes if node.op not in SOURCES]
    return Parts(
        [node for node in nodes if id(node) in model],
        [node for node in nodes if id(node) in features - model],
        [node for node in nodes if id(node) in heads],
    )


def _needed(graph: Graph, outputs: Sequence[Value]) -> set[int]:
    """Returns the ids of the nodes that outputs depend on."""
    values, nodes = set(outputs), set[int]()
    for node in reversed(graph.nodes):
        if not values.isdisjoint(node.outputs):
            nodes.add(id(node))
            values.update(value for value in node.inputs if value is not None)
    return nodes


def emit_heads(
    emitter: CudaEmitter,
    parts: Parts,
    run: Callable[[list[Node]], None],
    wide: Callable[[Value], Tensor],
    draw: Callable[[Tensor], Tensor | None],
) -> EmittedHeads | None:
    """Adds the calls behind those of the model and of drawing; returns None for a graph without heads. run: adds the
    calls of nodes. wide: returns an output as float32. draw: adds the call that draws tokens from logits, or returns
    None. Raises LoweringError for a model with recurrent layers, whose states could not be taken back behind a wrong
    proposal."""
    if not parts.heads:
        return None
    graph = emitter.graph
    if graph.facts.state_layers:
        raise LoweringError(
            f"{graph.name}: heads propose tokens, and the states of recurrent layers cannot be taken back behind a "
            "wrong one; leave out heads"
        )
    group, attend = _group_of(graph, parts.heads)
    _, features, logits, own = graph.outputs
    width = int(features.shape[1])
    first_feature = len(emitter.calls)
    run(parts.features)
    table, slots = _table(emitter, width), emitter.metadata("slots", group)
    _put(emitter, "draft_features", emitter.activation(features, "x"), slots, table)
    first = len(emitter.calls)
    emitter.work_lists.clear()  # a step of heads has other sequences
    _take(emitter, table, slots)
    run(parts.heads)
    result = wide(logits)
    if attend:  # others say all tokens at once, and nobody reads a feature of theirs
        _put(emitter, "heads", emitter.activation(own, "x"), emitter.metadata("next_slots"), table)
    first_draw, tokens = len(emitter.calls), draw(result) if attend else None
    draws = None if tokens is None else (first_draw, tokens)
    return EmittedHeads(first_feature, first, group, width, attend, result, draws)


def _group_of(graph: Graph, heads: list[Node]) -> tuple[int, bool]:
    """Returns the cache group of the heads' keys and values, and that they have some; else the model's first group."""
    caches = {v.name for node in heads for v in node.inputs if v is not None and v.dtype in CACHES}
    layers = [layer for i, layer in enumerate(graph.facts.kv_layers) if f"kv_cache.{i}" in caches]
    if layers:
        return layers[0].group, True
    return min(layer.group for layer in graph.facts.kv_layers), False


def _table(emitter: CudaEmitter, width: int) -> Tensor:
    address: Any = Address(PAGES, len(emitter.graph.facts.kv_layers) * PAGES_OF_A_LAYER)
    return Tensor.dense("table", address, (MAX_SLOTS, width), emitter.dtype)


def _put(emitter: CudaEmitter, text: str, x: Tensor, ids: Tensor, table: Tensor) -> None:
    """Adds the call that writes rows to slots."""
    inputs = {"x": x, "ids": ids}
    emitter.calls.append(OpCall(f"{text} put", put_rows, {"channels": x.shape[1]}, inputs, {"table": table}, 0))


def _take(emitter: CudaEmitter, table: Tensor, slots: Tensor) -> None:
    """Adds the call that reads the features of the step's tokens, and makes them the graph's input of features."""
    (given,) = (value for value in emitter.graph.inputs if value.name == FEATURES)
    y = emitter.make(given.shape, "y", emitter.dtype)
    inputs = {"x": table, "logit_rows": slots}
    emitter.calls.append(OpCall("heads take", gather_rows, {"channels": table.shape[1]}, inputs, {"y": y}, 0))
    emitter.tensors[given] = y
