"""Writes one graph into the plugin form (plugin_form.py), node after node, by handlers that it is given.

A handler gets the emitter and a node, and returns the names of the node's results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tensorwright.builder.emit.onnx.model_file import TYPES, ModelFile
from tensorwright.builder.emit.onnx.plugin_io import inputs_of, outputs_of
from tensorwright.builder.emit.onnx.plugin_weights import PluginWeights
from tensorwright.builder.emit.onnx.weights_source import as_array
from tensorwright.engine_format.kv_cache import SCALED_BYTES
from tensorwright.errors import LoweringError
from tensorwright.ir.graph import SOURCES, Graph, Node, Value
from tensorwright.ir.ops import kind_of
from tensorwright.models.checkpoint import Checkpoint

OPSET = 21
DOMAIN = "tensorwright"
PLUGIN = {"plugin_version": "1", "plugin_namespace": DOMAIN}
LATENT = frozenset(("head_products", "quantized_head_products", "latent_kv_write"))
"""Ops of latent attention, whose V is a part of K: the kernels of the plugin read rows of V."""


class PluginEmitter:
    """One graph while it is written into a ModelFile. `names` and `kinds` hold each value's name and type there."""

    def __init__(self, graph: Graph, checkpoint: Checkpoint, dtype: str, int4: str):
        self.graph, self.dtype, self.int4 = graph, dtype, int4
        self.model = ModelFile(graph.name, OPSET, domains=[DOMAIN])
        self.weights = PluginWeights(self.model, checkpoint, dtype)
        self.names: dict[Value, str] = {}
        self.kinds: dict[Value, str] = {}
        self.caches: dict[Value, list[str]] = {}
        """The names of the pages of K and V of each kv value, and of their scales where the cache is int8."""
        self.met: list[str] = []
        """The result of the last node that ranks compute together; the next one takes it as its operand `after`."""
        self.tables = {node.inputs[0] for node in graph.find("embedding")}

    def run(self, handlers: Handlers, of_kinds: Handlers) -> None:
        """Emits the whole graph. handlers: by the name of an op; of_kinds: by the kind that its record says."""
        self._inputs()
        for node in self.graph.nodes:
            if node.op in SOURCES:
                continue
            handler = handlers.get(node.op) or of_kinds.get(kind_of(node.op) or "")
            if handler is None:
                latent = node.op in LATENT and node.operand(1).constant is None
                what = f"latent attention ({node.op})" if latent else node.op
                raise self.refusal(node, f"{what} has no ONNX form for TensorRT")
            for value, name in zip(node.outputs, handler(self, node), strict=True):
                self.names[value] = name
                self.kinds.setdefault(value, self.dtype)
        self._outputs()

    def _inputs(self) -> None:
        for tensor in inputs_of(self.graph.facts, self.dtype):
            self.model.input(tensor.name, tensor.dtype, tensor.shape)
        for value in self.graph.inputs:
            if value.is_cache:
                layer = value.name.removeprefix("kv_cache.")
                has_scales = self.graph.facts.kv_layers[int(layer)].dtype in SCALED_BYTES
                pages = ["k_pages", "v_pages"] + ["k_scales", "v_scales"] * has_scales
                self.caches[value] = [f"{kind}.{layer}" for kind in pages]
            else:
                self.names[value], self.kinds[value] = value.name, value.dtype

    def _outputs(self) -> None:
        if not self.graph.find("send"):
            (logits,) = self.graph.outputs
            wide = self.kinds[logits] == "float32"
            op, to = ("Identity", None) if wide else ("Cast", TYPES["float32"])
            self.model.node(op, [self.names[logits]], scope="", outputs=["logits"], to=to)
        for tensor in outputs_of(self.graph, self.dtype):
            self.model.output(tensor.name, tensor.dtype, tensor.shape)

    # -- methods for the handlers -----------------------------------------------------------------------------------

    def refusal(self, node: Node, why: str) -> LoweringError:
        return LoweringError(f"{node.scope or 'the model'}: {why}; build with target cpu")

    def add(self, op: str, inputs: Sequence[str], scope: str, **attrs: Any) -> str:
        """Adds a standard node with one result, and returns the result's name."""
        return self.model.node(op, inputs, scope=scope, **attrs)[0]

    def plugin(self, op: str, inputs: Sequence[str], node: Node, outputs: Sequence[str], **attrs: Any) -> list[str]:
        """Adds a node of domain tensorwright, and returns its results' names."""
        return self.model.node(op, inputs, scope=node.scope, outputs=outputs, domain=DOMAIN, **PLUGIN, **attrs)

    def activation(self, value: Value) -> str:
        """Returns the name of a computed value or of an input."""
        if value not in self.names:
            raise LoweringError(f"%{value.name} is used as an activation, but it is a weight or constant")
        return self.names[value]

    def wide(self, value: Value) -> str:
        """Returns the name of an activation, cast to float32."""
        name = self.activation(value)
        return name if self.kinds[value] == "float32" else self._cast(name, "float32", value)

    def narrow(self, name: str, scope: str) -> str:
        """Returns the name of a float32 result, cast to A."""
        return name if self.dtype == "float32" else self.add("Cast", [name], scope, to=TYPES[self.dtype])

    def rounded(self, value: Value) -> str:
        """Returns the name of an activation, cast to A."""
        name = self.activation(value)
        return name if self.kinds[value] == self.dtype else self._cast(name, self.dtype, value)

    def _cast(self, name: str, dtype: str, value: Value) -> str:
        scope = value.node.scope if value.node is not None else ""
        return self.add("Cast", [name], scope, to=TYPES[dtype])

    def number(self, value: float, dtype: str) -> str:
        """Returns the name of a scalar initializer."""
        return self.model.constant(as_array(np.array(value, np.float32), dtype), f"number.{dtype}")

    def ints(self, numbers: Sequence[int]) -> str:
        return self.model.constant(np.array(numbers, np.int64), "ints")

    def exact(self, value: float) -> bool:
        """Returns whether A can hold a number exactly."""
        return float(as_array(np.array(value, np.float32), self.dtype).astype(np.float32)) == float(np.float32(value))


Handler = Callable[[PluginEmitter, Node], list[str]]
Handlers = Mapping[str, Handler]
