"""Reads the list of final layers from TensorRT's log, and proves by it that no page of the KV cache is copied.

Without a GPU no engine can be opened and inspected. But with detailed profiling verbosity the builder logs a message
that begins with "Layers:" and has a line per layer of each profile: name, type, inputs, outputs, the ONNX nodes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tensorwright.errors import BuildError

HEADING = "Layers:"
PLUGIN_KINDS = ("PluginV3", "custom_layer")
"""The kinds of plugin layers: a layer of its own, or one inside a part of the network that was compiled as one."""
_LINE = re.compile(r"^Name: (?P<name>.*?), LayerType: (?P<kind>\w+), Inputs: \[(?P<ins>.*), Outputs: \[(?P<outs>.*)$")
_TENSOR = re.compile(r"\{ Name: (.+?), (?:Location|Dimensions): ")
_NODE = re.compile(r"\[ONNX Layer: (.+?)\]")
_PROFILE = re.compile(r" \[profile \d+\]")


@dataclass(frozen=True)
class Layer:
    """A layer of the finished engine. `nodes`: the names of the ONNX nodes that it computes."""

    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[str, ...]

    @property
    def is_plugin(self) -> bool:
        return self.kind in PLUGIN_KINDS


def parse_layers(text: str) -> list[Layer]:
    """Returns the layers. Raises BuildError for a line of another form, since it would prove nothing."""
    layers: list[Layer] = []
    for line in text.splitlines():
        if not line.startswith("Name: "):
            if layers and not line.strip():  # the engine's tensors follow the layers
                break
            continue
        match = _LINE.match(line)
        if match is None:
            raise BuildError(f"TensorRT's list of layers has a line that is not understood: {line[:200]}")
        inputs = _TENSOR.findall(match["ins"].partition(", Constants: [")[0])
        outputs = _TENSOR.findall(match["outs"])
        layers.append(Layer(match["name"], match["kind"], tuple(inputs), tuple(outputs), tuple(_NODE.findall(line))))
    if not layers:
        raise BuildError("TensorRT's list of layers is empty, so nothing can be said of the engine")
    return layers


def check_pages(layers: Sequence[Layer], aliases: Mapping[str, str], profiles: int) -> None:
    """Raises BuildError unless only plugins touch the pages of the KV cache.

    aliases: page input -> page output, in the same memory. A copy, cast or reformat of the cache would appear as a
    layer of the library between the two. A plugin that writes the pages must be there in each profile.
    """
    known = {*aliases, *aliases.values()}
    written: Counter[str] = Counter()
    read: Counter[str] = Counter()
    for layer in layers:
        inputs, outputs = ({base(name) for name in names} & known for names in (layer.inputs, layer.outputs))
        if (inputs or outputs) and not layer.is_plugin:
            raise BuildError(
                f"the engine would copy the KV cache in every step: layer {layer.name!r} ({layer.kind}) is no plugin "
                f"and touches {', '.join(sorted(inputs | outputs))}; the cache must be updated in place"
            )
        written.update(outputs)
        read.update(inputs)
    faults = [name for page, name in aliases.items() if written[name] != profiles or read[page] != profiles]
    if faults:
        raise BuildError(
            f"a plugin layer must update each page in each of the {profiles} profiles, and none does: "
            f"{', '.join(faults[:4])}; the list of layers shows another engine than was asked for"
        )


def check_plugins(layers: Sequence[Layer], nodes: Mapping[str, str], profiles: int) -> dict[str, int]:
    """Returns {op: its layers in one profile}. Raises BuildError if a plugin node is not a layer of its own.

    nodes: the plugin nodes of the ONNX model, name -> op.
    """
    found = Counter(node for layer in layers if layer.is_plugin for node in layer.nodes)
    missing = [name for name in nodes if found[name] != profiles]
    if missing:
        raise BuildError(
            f"each of {len(nodes)} plugin nodes must be one layer in each of the {profiles} profiles, and "
            f"{', '.join(f'{name} is {found[name]}' for name in missing[:4])}"
        )
    return dict(sorted(Counter(nodes.values()).items()))


def base(name: str) -> str:
    """Returns a tensor's name without the suffix of its profile."""
    return _PROFILE.sub("", name)


def count_kinds(layers: Sequence[Layer]) -> dict[str, int]:
    """Returns the number of layers of each kind, over all profiles."""
    return dict(sorted(Counter(layer.kind for layer in layers).items()))
