"""Describes the inputs and outputs of the plugin form, which engine_format/tensorrt_manifest.py names."""

from __future__ import annotations

from typing import Any

from tensorwright.engine_format import tensorrt_manifest
from tensorwright.engine_format.tensorrt_manifest import IoTensor, layer_pages, step_inputs
from tensorwright.ir.facts import Facts
from tensorwright.ir.graph import Graph


def groups_of(facts: Facts) -> list[dict[str, Any]]:
    """Returns the window and the layers of each cache group."""
    layers = facts.kv_layers
    numbers = sorted({one.group for one in layers})
    members = [[i for i, one in enumerate(layers) if one.group == group] for group in numbers]
    return [{"window": layers[found[0]].window, "layers": found} for found in members]


def inputs_of(facts: Facts, dtype: str) -> list[IoTensor]:
    """Returns all inputs, in order."""
    return [*step_inputs(len(groups_of(facts))), *pages_of(facts, dtype)]


def outputs_of(graph: Graph, dtype: str) -> list[IoTensor]:
    """Returns the outputs: the logits, or what a stage that is not the last sends on, and the cache."""
    facts = graph.facts
    sent = tensorrt_manifest.sent_outputs(len(graph.find("send")), dtype)
    return list(tensorrt_manifest.outputs_of(tuple(pages_of(facts, dtype)), facts.vocab_size, sent))


def pages_of(facts: Facts, dtype: str) -> list[IoTensor]:
    """Returns the pages of every layer, each followed by its scales if the cache is int8."""
    return [
        page
        for index, cache in enumerate(facts.kv_layers)
        for page in layer_pages(
            index, cache.group, (cache.kv_heads, facts.block_size, cache.head_dim), cache.dtype_or(dtype)
        )
    ]


def describe_io(graph: Graph, dtype: str) -> dict[str, Any]:
    """Returns {"dtype", "block_size", "groups": [{"window", "layers"}], "inputs", "outputs"}.

    inputs and outputs: [{"name", "dtype", "shape"}].
    """

    def described(tensors: list[IoTensor]) -> list[dict[str, Any]]:
        return [{"name": one.name, "dtype": one.dtype, "shape": list(one.shape)} for one in tensors]

    facts = graph.facts
    return {
        "dtype": dtype,
        "block_size": facts.block_size,
        "groups": groups_of(facts),
        "inputs": described(inputs_of(facts, dtype)),
        "outputs": described(outputs_of(graph, dtype)),
    }
