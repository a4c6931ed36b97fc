"""The portable ONNX form: a graph at stage "cached" in standard ops and ONNX Runtime's own, with the cache in slots.

B sequences of S tokens each are a step: a batch of decode steps (S = 1), or a chunk of one prompt (B = 1). Rows are
token-major, [B * S, C], but around attention, which sees [B, S, C]. The cache of a sequence is one slot of max_seq_len
positions, read and written in place by GroupQueryAttention. portable_io.py has the inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorwright.builder.emit.onnx.group_attention import COLUMN_NORMS, make_table, padded_dim
from tensorwright.builder.emit.onnx.model_file import ModelFile
from tensorwright.builder.emit.onnx.weights_source import Weights
from tensorwright.errors import LoweringError
from tensorwright.ir.graph import Graph, Node, Value
from tensorwright.models.checkpoint import Checkpoint

OPSET = 23


def emit_portable(graph: Graph, checkpoint: Checkpoint, dtype: str) -> Emitter:
    """The model, whose weights are read when it is written. Raises LoweringError for what has no portable form."""
    emitter = Emitter(graph, checkpoint, dtype)
    emitter.run()
    return emitter


class Emitter:
    """One graph on its way into a ModelFile; `names` says what each value of the graph is called there."""

    def __init__(self, graph: Graph, checkpoint: Checkpoint, dtype: str):
        self.graph, self.dtype = graph, dtype
        self.model = ModelFile(graph.name, OPSET, contrib=True)
        self.weights = Weights(self.model, checkpoint, dtype)
        self.names: dict[Value, str] = {}
        self.wide: set[Value] = set()
        """Logits of a model whose activations are not float32."""
        self.users = graph.users()
        self._once: dict[Any, Any] = {}

    def run(self) -> None:
        """The whole graph. Raises LoweringError for an op that has no portable form."""
        from tensorwright.builder.emit.onnx.portable_ops import HANDLERS

        self._inputs()
        for node in self.graph.nodes:
            if node.op in ("weight", "constant", "input", "rotary_table", "rotary_kv_write", *COLUMN_NORMS):
                continue
            handler = HANDLERS.get(node.op)
            if handler is None:
                raise LoweringError(
                    f"{node.op} in {node.scope or 'the model'} has no portable ONNX form; build with target cpu"
                )
            named = handler(self, node)
            self.names.update(zip(node.outputs, named, strict=True))
        self._outputs()

    def _inputs(self) -> None:
        for name, shape in (("token_ids", ("batch", "seq")), ("positions", ("batch", "seq")),
                            ("seqlens_k", ("batch",)), ("total_sequence_length", ()),
                            ("logit_rows", ("rows",))):  # fmt: skip
            self.model.input(name, "int32", shape)
        for i in range(len(self.graph.facts["kv_layers"])):
            for kind in "kv":
                self.model.input(f"past_{kind}.{i}", self.dtype, self._slots(i))
        self.names.update({v: v.name for v in self.graph.inputs if v.name == "logit_rows"})

    def _slots(self, layer: int) -> tuple[int | str, ...]:
        about = self.graph.facts["kv_layers"][layer]
        return "batch", about["kv_heads"], self.graph.facts["max_seq_len"], padded_dim(about["head_dim"])

    def _outputs(self) -> None:
        (logits,) = self.graph.outputs
        (name,) = self.model.node("Identity", [self.name(logits)], scope="", outputs=["logits"])
        self.model.output(name, "float32", ("rows", int(logits.shape[-1])))
        for i in range(len(self.graph.facts["kv_layers"])):
            for kind in "kv":
                self.model.output(f"present_{kind}.{i}", self.dtype, self._slots(i))

    # -- what handlers use ------------------------------------------------------------------------------------------

    def name(self, value: Value | None) -> str:
        """What a value is called; a weight or constant becomes an initializer in the activation type."""
        assert value is not None
        if value in self.names:
            return self.names[value]
        return self.weights.plain(value)

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """What `make` made the first time."""
        if key not in self._once:
            self._once[key] = make()
        return self._once[key]

    def shape_constant(self, numbers: Sequence[int]) -> str:
        return self.model.constant(np.array(numbers, np.int64), "shape")

    def reshape(self, x: str, shape: Sequence[int], scope: str) -> str:
        return self.model.node("Reshape", [x, self.shape_constant(shape)], scope=scope)[0]

    def to_rows(self, x: str, columns: int, scope: str) -> str:
        """[B, S, C] -> [B * S, C]."""
        return self.reshape(x, [-1, columns], scope)

    def to_grid(self, x: str, scope: str) -> str:
        """[B * S, C] -> [B, S, C]."""
        shape = self.once("grid", self._grid)
        return self.model.node("Reshape", [x, shape], scope=scope)[0]

    def _grid(self) -> str:
        (sizes,) = self.model.node("Shape", ["token_ids"], scope="step")
        return self.model.node("Concat", [sizes, self.shape_constant([-1])], scope="step", axis=0)[0]

    def ids(self, name: str) -> str:
        """token_ids or positions as [B * S]."""
        return self.once(("ids", name), lambda: self.reshape(name, [-1], "step"))

    def position_ids(self) -> str:
        """positions as RotaryEmbedding reads them."""
        return self.once("positions", lambda: self.model.node("Cast", ["positions"], scope="step", to=7)[0])

    def table(self, value: Value, rotary_dim: int) -> list[str]:
        """cos and sin by position."""
        length = self.graph.facts["max_seq_len"]
        return self.once(("table", value), lambda: make_table(self, value, rotary_dim, length))

    def normalise(self, node: Node, x: str) -> str:
        """The norm of a node (of rows, or of runs of columns) on x."""
        weight, bias = (*node.inputs[1:], None)[:2]
        assert weight is not None
        gamma = self.weights.plain(weight, plus=node.attrs["weight_offset"])
        if node.op.startswith("rms"):
            return self.model.node(
                "RMSNormalization", [x, gamma], scope=node.scope, axis=-1, epsilon=node.attrs["eps"]
            )[0]
        return self._layer_norm(node, x, gamma, bias)

    def _layer_norm(self, node: Node, x: str, gamma: str, bias: Value | None) -> str:
        attrs = {"scope": node.scope, "axis": -1, "epsilon": node.attrs["eps"]}
        weight = node.inputs[1]
        assert weight is not None
        if weight.rank == 1:
            operands = [x, gamma] + ([] if bias is None else [self.weights.plain(bias)])
            return self.model.node("LayerNormalization", operands, **attrs)[0]
        ones = self.model.constant(np.ones(int(weight.shape[-1]), self.dtype), "ones")
        (y,) = self.model.node("LayerNormalization", [x, ones], **attrs)
        (y,) = self.model.node("Mul", [y, gamma], scope=node.scope)
        if bias is not None:
            (y,) = self.model.node("Add", [y, self.weights.plain(bias)], scope=node.scope)
        return y
