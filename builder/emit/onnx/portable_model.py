"""Holds a model in the portable form while it is written: the name of each value of the graph, and the nodes that
handlers of several ops share.

A step has B sequences of S tokens each. C is the number of columns of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorwright.builder.emit.onnx.model_file import ModelFile
from tensorwright.builder.emit.onnx.weights_source import Weights
from tensorwright.ir.graph import Graph, Node, Value
from tensorwright.models.checkpoint import Checkpoint

OPSET = 23


class PortableModel:
    """One graph while it is written into a ModelFile. `names` maps each value of the graph to its name there."""

    def __init__(self, graph: Graph, checkpoint: Checkpoint, dtype: str):
        self.graph, self.dtype = graph, dtype
        self.model = ModelFile(graph.name, OPSET, contrib=True)
        self.weights = Weights(self.model, checkpoint, dtype)
        self.names: dict[Value, str] = {}
        self.wide: set[Value] = set()
        """Values in float32 in a model with narrower activations: logits, and what is computed from logits."""
        self.users = graph.users()
        self._once: dict[Any, Any] = {}

    def name(self, value: Value) -> str:
        """Returns the name of a value. A weight or constant becomes an initializer in the activation type."""
        if value in self.names:
            return self.names[value]
        return self.weights.plain(value)

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """Returns what `make` returned at the first call with this key."""
        if key not in self._once:
            self._once[key] = make()
        return self._once[key]

    def shape_constant(self, numbers: Sequence[int]) -> str:
        return self.model.constant(np.array(numbers, np.int64), "shape")

    def reshape(self, x: str, shape: Sequence[int], scope: str) -> str:
        return self.model.node("Reshape", [x, self.shape_constant(shape)], scope=scope)[0]

    def to_rows(self, x: str, columns: int, scope: str) -> str:
        """Reshapes [B, S, C] to [B * S, C]."""
        return self.reshape(x, [-1, columns], scope)

    def to_grid(self, x: str, scope: str) -> str:
        """Reshapes [B * S, C] to [B, S, C]."""
        shape = self.once("grid", self._grid)
        return self.model.node("Reshape", [x, shape], scope=scope)[0]

    def _grid(self) -> str:
        (sizes,) = self.model.node("Shape", ["token_ids"], scope="step")
        return self.model.node("Concat", [sizes, self.shape_constant([-1])], scope="step", axis=0)[0]

    def ids(self, name: str) -> str:
        """Returns token_ids or positions as [B * S]."""
        return self.once(("ids", name), lambda: self.reshape(name, [-1], "step"))

    def position_ids(self) -> str:
        """Returns positions in the form that RotaryEmbedding reads."""
        return self.once("positions", lambda: self.model.node("Cast", ["positions"], scope="step", to=7)[0])

    def normalise(self, node: Node, x: str) -> str:
        """Applies the norm of a node (of rows, or of runs of columns) to x."""
        weight, bias = node.operand(1), node.optional(2)
        gamma = self.weights.plain(weight, plus=node.attrs["weight_offset"])
        if node.op.startswith("rms"):
            return self.model.node(
                "RMSNormalization", [x, gamma], scope=node.scope, axis=-1, epsilon=node.attrs["eps"]
            )[0]
        attrs = {"scope": node.scope, "axis": -1, "epsilon": node.attrs["eps"]}
        if weight.rank == 1:
            operands = [x, gamma] + ([] if bias is None else [self.weights.plain(bias)])
            return self.model.node("LayerNormalization", operands, **attrs)[0]
        ones = self.model.constant(np.ones(int(weight.shape[-1]), self.dtype), "ones")
        (y,) = self.model.node("LayerNormalization", [x, ones], **attrs)
        (y,) = self.model.node("Mul", [y, gamma], scope=node.scope)
        if bias is not None:
            (y,) = self.model.node("Add", [y, self.weights.plain(bias)], scope=node.scope)
        return y
