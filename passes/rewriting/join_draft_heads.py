"""join_draft_heads:  the graph of a model, and that of the heads that propose tokens to it  ->  one graph

    %logits, %features       of the model
    %y = draft_features(%features) {logits, hidden}     parts the two
    %draft_logits, %hidden   of the heads

Both are lowered, or both are at stage "cached", where targets other than cpu take them. There nothing parts the two:
the heads read the input %features of the joined graph, and its outputs are all four.

The heads' attention layers follow the model's, in the cache group of the model's layers that see every position, so
that the blocks of a sequence hold the heads' keys and values too. Without such layers they have a group of their own.
This is no pass of the pipeline, for it takes two graphs. plan_memory runs behind it where they are lowered.
"""

from __future__ import annotations

from dataclasses import replace

from tensorwright.errors import PassError
from tensorwright.ir import Graph, Node, Value
from tensorwright.ir.facts import KvLayer
from tensorwright.ir.graph import CACHES
from tensorwright.ir.verify import CACHE_INPUTS, FEATURES, verify
from tensorwright.passes.plan_memory import plan_memory

DRAFT_FEATURES = "draft_features"


def join_draft_heads(model: Graph, heads: Graph) -> Graph:
    """Returns a new graph: its outputs are the model's logits, the heads' logits and the heads' features, and at stage
    "cached" the model's features behind its logits.

    Raises PassError unless both are at one of the two stages, the model has features as its second output, and the
    heads read such.
    """
    stage = "cached" if model.stage == "cached" else "lowered"
    for graph in (model, heads):
        if graph.stage != stage or len(graph.outputs) != 2:
            raise PassError(f"{graph.name} must be {stage}, with logits and features, to be joined with heads")
    joined = model.clone()
    logits, features = joined.outputs
    if (features.dtype, features.shape[0]) != ("float32", "tokens"):
        raise PassError(f"the features of {model.name} must be float32 of every token, not {features}")
    layers = len(joined.facts.kv_layers)
    joined.facts.kv_layers = [*joined.facts.kv_layers, *_renumbered(heads.facts.kv_layers, joined.facts.kv_layers)]
    moved: dict[Value, Value | None] = {}
    for node in heads.nodes:
        moved.update(_copied(joined, node, moved, features, layers))
    results = [moved[value] for value in heads.outputs]
    kept = [logits, features] if stage == "cached" else [logits]
    joined.outputs = [*kept, *(value for value in results if value is not None)]
    joined.drop_dead()
    if stage == "lowered":
        plan_memory(joined)
        _tell_results(joined)
    verify(joined, stage)
    return joined


def model_of(joined: Graph) -> Graph:
    """Returns the model alone of a graph that was joined at stage "cached". Its facts keep the heads' cache."""
    model = joined.clone()
    model.outputs = model.outputs[:1]
    model.drop_dead()
    model.nodes = [node for node in model.nodes if node.op != "input" or node.output.name != FEATURES]
    return model


def _renumbered(layers: list[KvLayer], model: list[KvLayer]) -> list[KvLayer]:
    whole = next((layer.group for layer in model if layer.window == 0), None)
    group = 1 + max((layer.group for layer in model), default=-1) if whole is None else whole
    if any(layer.window for layer in layers):
        raise PassError("heads that attend to a window of positions have no cache group in the model")
    return [replace(layer, group=group) for layer in layers]


def _copied(
    joined: Graph, node: Node, moved: dict[Value, Value | None], features: Value, layers: int
) -> dict[Value, Value | None]:
    """Adds a copy of a node of the heads, unless it is an input that the model has. Returns the new values."""
    names = [value.name for value in node.outputs]
    if node.op == "input":
        (name,) = names
        if name == FEATURES:
            return dict.fromkeys(node.outputs, _input(joined, node, name))
        prefix = next((p for p in CACHE_INPUTS if name.startswith(p)), None)
        if prefix is not None:
            return dict.fromkeys(
                node.outputs, _input(joined, node, f"{prefix}{int(name.removeprefix(prefix)) + layers}")
            )
        known = next((value for value in joined.inputs if value.name == name), None)
        return dict.fromkeys(node.outputs, known or _input(joined, node, name))
    attrs = {key: value for key, value in node.attrs.items() if key != "buffers"}
    number = "layer" if joined.stage == "cached" else "kv_layer"
    if number in attrs:
        attrs[number] += layers
    operands = [None if value is None else moved[value] for value in node.inputs]
    if node.op == DRAFT_FEATURES:
        operands[0] = features
    types = [(value.dtype, value.shape) for value in node.outputs]
    copy = joined.add(
        node.op, operands, attrs, types, scope=f"heads.{node.scope}" if node.scope else "heads", names=names
    )
    return dict(zip(node.outputs, copy.outputs, strict=True))


def _input(joined: Graph, node: Node, name: str) -> Value:
    (value,) = node.outputs
    return joined.add("input", (), {}, [(value.dtype, value.shape)], names=[name]).output


def _tell_results(joined: Graph) -> None:
    """Writes into draft_features where the heads leave their results, which plan_memory has decided."""
    (parts,) = joined.find(DRAFT_FEATURES)
    places = {
        value: buffer
        for node in joined.nodes
        for value, buffer in zip(node.outputs, node.attrs.get("buffers", ()), strict=False)
        if value.dtype not in CACHES
    }
    parts.attrs["logits"], parts.attrs["hidden"] = (places[value] for value in joined.outputs[1:])
