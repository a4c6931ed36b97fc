"""The plugin form: a graph at stage "cached" in standard ONNX ops and those of domain tensorwright, for TensorRT.

A is the activation type: every activation is A, arithmetic inside norms, gates and rotary tables float32, logits
float32. The cache is pages [pages, kv_heads, block_size, head_dim] of A or int8, passed in and given back in place;
each cache group has its own block tables and slots. plugin_io.py has the names.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tensorwright.builder.emit.onnx.model_file import TYPES, ModelFile
from tensorwright.builder.emit.onnx.plugin_io import describe_io, inputs_of, outputs_of
from tensorwright.builder.emit.onnx.plugin_weights import PluginWeights
from tensorwright.builder.emit.onnx.weights_source import as_array
from tensorwright.engine_format.dtypes import DTYPES
from tensorwright.errors import InvalidOptionError, LoweringError
from tensorwright.ir.graph import Graph, Node, Value
from tensorwright.models.checkpoint import Checkpoint

OPSET = 21
DOMAIN = "tensorwright"
MODEL, DATA = "model.onnx", "model.onnx.data"
INT4 = ("native", "plugin")
PLUGIN = {"plugin_version": "1", "plugin_namespace": DOMAIN}


def emit_plugin_form(
    graph: Graph, checkpoint: Checkpoint, path_dir: str | Path, dtype: str, *, int4: str = "native"
) -> dict[str, Any]:
    """Writes model.onnx and model.onnx.data into a folder; gives what plugin_io.describe_io says, and the record of
    quantization ("quantization").

    dtype: A, one of DTYPES. int4: "native" (DequantizeLinear of INT4) or "plugin" (WeightOnlyLinear). Raises
    LoweringError for an op without an ONNX form, CheckpointError for weights that A cannot hold, InvalidOptionError.
    """
    import onnx

    if dtype not in DTYPES or int4 not in INT4:
        raise InvalidOptionError(
            f"dtype must be one of {', '.join(DTYPES)} and int4 one of {', '.join(INT4)}, not {dtype!r} and {int4!r}"
        )
    emitter = PluginEmitter(graph, checkpoint, dtype, int4)
    emitter.run()
    folder = Path(path_dir)
    (folder / MODEL).write_bytes(emitter.model.serialized(DATA))
    with (folder / DATA).open("wb") as file:
        emitter.model.write_data(file)
    onnx.checker.check_model(str(folder / MODEL), full_check=True)
    return {**describe_io(graph.facts, dtype), "quantization": emitter.weights.record(graph)}


class PluginEmitter:
    """One graph on its way into a ModelFile; `names` and `kinds` say what a value is called there and of which type."""

    def __init__(self, graph: Graph, checkpoint: Checkpoint, dtype: str, int4: str):
        self.graph, self.dtype, self.int4 = graph, dtype, int4
        self.model = ModelFile(graph.name, OPSET, domains=[DOMAIN])
        self.weights = PluginWeights(self.model, checkpoint, dtype)
        self.names: dict[Value, str] = {}
        self.kinds: dict[Value, str] = {}
        self.caches: dict[Value, list[str]] = {}
        """Of each kv value: pages of K and V, and their scales in int8."""
        self.tables = {node.inputs[0] for node in graph.find("embedding")}

    def run(self) -> None:
        """The whole graph."""
        from tensorwright.builder.emit.onnx.plugin_ops import HANDLERS

        self._inputs()
        for node in self.graph.nodes:
            if node.op in ("weight", "constant", "input"):
                continue
            handler = HANDLERS.get(node.op)
            if handler is None:
                raise self.refusal(node, f"{node.op} has no ONNX form for TensorRT")
            for value, name in zip(node.outputs, handler(self, node), strict=True):
                self.names[value] = name
                self.kinds.setdefault(value, self.dtype)
        self._outputs()

    def _inputs(self) -> None:
        for name, dtype, shape in inputs_of(self.graph.facts, self.dtype):
            self.model.input(name, dtype, shape)
        for value in self.graph.inputs:
            if value.dtype == "kv":
                layer = value.name.removeprefix("kv_cache.")
                int8 = self.graph.facts["kv_layers"][int(layer)].get("dtype") == "int8"
                pages = ["k_pages", "v_pages"] + ["k_scales", "v_scales"] * int8
                self.caches[value] = [f"{kind}.{layer}" for kind in pages]
            else:
                self.names[value], self.kinds[value] = value.name, value.dtype

    def _outputs(self) -> None:
        (logits,) = self.graph.outputs
        wide = self.kinds[logits] == "float32"
        op, to = ("Identity", None) if wide else ("Cast", TYPES["float32"])
        self.model.node(op, [self.names[logits]], scope="", outputs=["logits"], to=to)
        for name, dtype, shape in outputs_of(self.graph.facts, self.dtype):
            self.model.output(name, dtype, shape)

    # -- what handlers use ------------------------------------------------------------------------------------------

    def refusal(self, node: Node, why: str) -> LoweringError:
        return LoweringError(f"{node.scope or 'the model'}: {why}; build with target cpu")

    def add(self, op: str, inputs: Sequence[str], scope: str, **attrs: Any) -> str:
        """A standard node with one result."""
        return self.model.node(op, inputs, scope=scope, **attrs)[0]

    def plugin(self, op: str, inputs: Sequence[str], node: Node, outputs: Sequence[str], **attrs: Any) -> list[str]:
        """One of our nodes."""
        return self.model.node(op, inputs, scope=node.scope, outputs=outputs, domain=DOMAIN, **PLUGIN, **attrs)

    def activation(self, value: Value | None) -> str:
        """What a computed value or an input is called."""
        assert value is not None
        if value not in self.names:
            raise LoweringError(f"%{value.name} is used as an activation, but it is a weight or constant")
        return self.names[value]

    def wide(self, value: Value | None) -> str:
        """An activation in float32."""
        assert value is not None
        name = self.activation(value)
        return name if self.kinds[value] == "float32" else self._cast(name, "float32", value)

    def narrow(self, name: str, scope: str) -> str:
        """A float32 result in A."""
        return name if self.dtype == "float32" else self.add("Cast", [name], scope, to=TYPES[self.dtype])

    def _cast(self, name: str, dtype: str, value: Value) -> str:
        scope = value.node.scope if value.node is not None else ""
        return self.add("Cast", [name], scope, to=TYPES[dtype])

    def number(self, value: float, dtype: str) -> str:
        """A scalar initializer."""
        return self.model.constant(as_array(np.array(value, np.float32), dtype), f"number.{dtype}")

    def ints(self, numbers: Sequence[int]) -> str:
        return self.model.constant(np.array(numbers, np.int64), "ints")

    def exact(self, value: float) -> bool:
        """Whether A holds a number."""
        return float(as_array(np.array(value, np.float32), self.dtype).astype(np.float32)) == float(np.float32(value))
