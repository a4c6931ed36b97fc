"""Writes a model's configuration: the text of config.pbtxt, and the parts that Triton asks the model to complete."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tensorwright.options.declare import find
from tensorwright.options.triton import ModelFields
from tensorwright.runtime.serving.triton.interfaces import interface_of
from tensorwright.runtime.serving.triton.tensors import Tensor

DEFAULT_INTERFACE: str = find(ModelFields, "interface").default


def config_text(
    name: str, backend: str, max_batch_size: int, parameters: Mapping[str, str], decoupled: bool = True
) -> str:
    """Returns the text of config.pbtxt. max_batch_size: the most prompts of one request; 0 means that tensors have no
    batch dimension."""
    interface = interface_of(parameters.get("interface", DEFAULT_INTERFACE))
    lines = [
        "# Written by `tensorwright triton-repo`. The parameters may be edited; docs: docs/triton.md.",
        f"name: {_quoted(name)}",
        f"backend: {_quoted(backend)}",
        f"max_batch_size: {max_batch_size}",
        f"model_transaction_policy {{ decoupled: {str(decoupled).lower()} }}",
        "instance_group [ { count: 1, kind: KIND_CPU } ]",
    ]
    lines += [
        f"parameters {{ key: {_quoted(key)}, value: {{ string_value: {_quoted(value)} }} }}"
        for key, value in parameters.items()
    ]
    lines += [_tensor_text("input", tensor) for tensor in interface.inputs]
    lines += [_tensor_text("output", tensor) for tensor in interface.outputs]
    return "\n".join(lines) + "\n"


def complete(config: Any) -> Any:
    """Adds the interface's tensors if config.pbtxt names none, and the decoupled mode if config.pbtxt does not say.

    config: Triton's ModelConfig object.
    """
    known = config.as_dict()
    parameters = known.get("parameters", {})
    name = parameters.get("interface", {}).get("string_value", DEFAULT_INTERFACE)
    interface = interface_of(name)
    if not known.get("input"):
        for tensor in interface.inputs:
            config.add_input(_tensor_dict(tensor) | {"optional": not tensor.required})
    if not known.get("output"):
        for tensor in interface.outputs:
            config.add_output(_tensor_dict(tensor))
    if "model_transaction_policy" not in known:
        config.set_model_transaction_policy({"decoupled": True})
    return config


def _tensor_dict(tensor: Tensor) -> dict[str, Any]:
    return {"name": tensor.name, "data_type": f"TYPE_{tensor.dtype}", "dims": list(tensor.dims)}


def _tensor_text(kind: str, tensor: Tensor) -> str:
    optional = ", optional: true" if kind == "input" and not tensor.required else ""
    dims = ", ".join(map(str, tensor.dims))
    return f"{kind} {{ name: {_quoted(tensor.name)}, data_type: TYPE_{tensor.dtype}, dims: [ {dims} ]{optional} }}"


def _quoted(text: str) -> str:
    """Quotes a text for protobuf's text format. That format knows JSON's escapes of ASCII but not \\u, so UTF-8 is not
    escaped."""
    return json.dumps(text, ensure_ascii=False)
