"""Makes the manifest of an engine, from the graph's facts and the ONNX file that the engine is built from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tensorwright.builder.emit.tensorrt.profiles import make_profiles
from tensorwright.engine_format.tensorrt_manifest import (
    IoTensor,
    KvLayer,
    Manifest,
    outputs_of,
    page_inputs,
    sent_outputs,
    step_inputs,
)
from tensorwright.errors import BuildError
from tensorwright.ir.facts import Facts

DOMAIN = "tensorwright"
_TYPES = {"FLOAT": "float32", "FLOAT16": "float16", "BFLOAT16": "bfloat16", "INT8": "int8", "INT32": "int32"}


@dataclass(frozen=True)
class OnnxFacts:
    """The contents of the ONNX file except weights."""

    inputs: tuple[IoTensor, ...]
    outputs: tuple[IoTensor, ...]
    plugins: dict[str, str]
    """The version of each op of our domain that a node uses."""
    plugin_nodes: dict[str, str]
    """The op of each node of our domain, by the node's name."""


def read_onnx(path: Path) -> OnnxFacts:
    """Reads the graph of an ONNX file, but not its external data."""
    import onnx

    graph = onnx.load(str(path), load_external_data=False).graph
    plugins, nodes = {}, {}
    for node in graph.node:
        if node.domain == DOMAIN:
            attrs = {attr.name: onnx.helper.get_attribute_value(attr) for attr in node.attribute}
            plugins[node.op_type] = attrs["plugin_version"].decode()
            nodes[node.name] = node.op_type
    stored = {tensor.name for tensor in graph.initializer}
    inputs = tuple(_tensor(info) for info in graph.input if info.name not in stored)
    return OnnxFacts(inputs, tuple(map(_tensor, graph.output)), dict(sorted(plugins.items())), nodes)


def _tensor(info: Any) -> IoTensor:
    from onnx import TensorProto

    kind = info.type.tensor_type
    name = TensorProto.DataType.Name(kind.elem_type)
    shape = tuple(dim.dim_param or dim.dim_value for dim in kind.shape.dim)
    return IoTensor(info.name, _TYPES.get(name, name), shape)


def make_manifest(
    facts: Facts,
    onnx_facts: OnnxFacts,
    *,
    flavour: str,
    sms: tuple[int, ...],
    kernel_sms: tuple[int, ...],
    batch: int,
    tokens: int,
) -> Manifest:
    """Returns the manifest without the library's version, which the child reports.

    Raises BuildError if the file's tensors are not those of the manifest.
    """
    layers = tuple(KvLayer(one.group, one.kv_heads, one.head_dim) for one in facts.kv_layers)
    windows = {one.group: one.window for one in facts.kv_layers}
    kv_dtype = facts.kv_layers[0].dtype_or(facts.dtype)
    pages = page_inputs(layers, kv_dtype, facts.block_size)
    sends = sum(tensor.name.startswith("sent.") for tensor in onnx_facts.outputs)
    outputs = outputs_of(pages, facts.vocab_size, sent_outputs(sends, facts.dtype))
    shape = {"block_size": facts.block_size, "max_seq_len": facts.max_seq_len}
    return Manifest(
        flavour=flavour,
        library_version="unknown",
        sms=sms,
        kernel_sms=kernel_sms,
        dtype=facts.dtype,
        kv_dtype=kv_dtype,
        vocab_size=facts.vocab_size,
        layers=layers,
        group_windows=tuple(windows[group] for group in sorted(windows)),
        inputs=_agreed(onnx_facts.inputs, (*step_inputs(len(windows)), *pages)),
        outputs=_agreed(onnx_facts.outputs, outputs),
        profiles=make_profiles(layers, len(windows), batch=batch, tokens=tokens, **shape),
        plugins=onnx_facts.plugins,
        sends=sends or None,
        **shape,
    )


def with_version(manifest: Manifest, library_version: str) -> Manifest:
    """Returns the manifest as io.json stores it, with the library's version."""
    return replace(manifest, library_version=library_version)


def _agreed(found: Iterable[IoTensor], known: Iterable[IoTensor]) -> tuple[IoTensor, ...]:
    """Returns the file's tensors in the file's order, with the names and shapes of `known`."""
    table = {tensor.name: tensor for tensor in known}
    result = []
    for tensor in found:
        agreed = table.get(tensor.name)
        if agreed is None or replace(agreed, alias=None) != tensor:
            raise BuildError(f"the ONNX model has the tensor {tensor}, the engine's manifest knows {agreed}")
        result.append(agreed)
    return tuple(result)
