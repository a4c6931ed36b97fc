"""Collects an ONNX model: nodes named after module paths, small initializers inside, weights in model.onnx.data.

Weights are streamed into the data file when the model is written, one at a time and a few rows at once. The offset of
each weight follows from types and shapes alone. The same graph gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tensorwright.builder.emit.streamed_file import Chunks, Stored, StreamedFile

IR_VERSION = 11
CONTRIB = "com.microsoft"
TYPES = {
    "float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16,
    "float8_e4m3fn": TensorProto.FLOAT8E4M3FN, "int32": TensorProto.INT32, "int64": TensorProto.INT64,
    "uint8": TensorProto.UINT8, "int8": TensorProto.INT8, "int4": TensorProto.INT4,
}  # fmt: skip
ELEMENTWISE_NAMES = {
    "add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "pow": "Pow", "maximum": "Max", "minimum": "Min",
    "neg": "Neg", "abs": "Abs", "sqrt": "Sqrt", "exp": "Exp", "log": "Log", "tanh": "Tanh", "sigmoid": "Sigmoid",
    "erf": "Erf", "relu": "Relu", "softplus": "Softplus",
}  # fmt: skip
"""Maps the graph's op to the ONNX op of the same meaning."""
SMALL, LARGE = 64, 4096
"""Alignments in bytes. Weights of at least LARGE * 16 bytes are aligned to a page, so that they can be mapped."""


class ModelFile:
    """Collects nodes and initializers; both keep the order in which they were added."""

    def __init__(self, name: str, opset: int, *, contrib: bool = False, domains: Sequence[str] = ()):
        self.name, self.opset = name, opset
        self.domains = [CONTRIB] * contrib + list(domains)
        """The model's domains beside ONNX's own. Each is at version 1."""
        self.value_info: list[onnx.ValueInfoProto] = []
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.small: dict[str, onnx.TensorProto] = {}
        self.data = StreamedFile(_alignment)
        self._names: set[str] = set()

    def unique(self, name: str) -> str:
        """Returns `name`, with a number added if the name is taken."""
        found, count = name, 1
        while found in self._names:
            count += 1
            found = f"{name}.{count}"
        self._names.add(found)
        return found

    def input(self, name: str, dtype: str, shape: Sequence[int | str]) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, TYPES[dtype], list(shape)))
        return self.unique(name)

    def tell(self, name: str, dtype: str, shape: Sequence[int | str]) -> None:
        """Declares the type of a value that ONNX cannot infer."""
        self.value_info.append(helper.make_tensor_value_info(name, TYPES[dtype], list(shape)))

    def output(self, name: str, dtype: str, shape: Sequence[int | str]) -> None:
        self.outputs.append(helper.make_tensor_value_info(name, TYPES[dtype], list(shape)))

    def node(
        self,
        op: str,
        inputs: Sequence[str],
        *,
        scope: str,
        outputs: Sequence[str] = ("",),
        domain: str = "",
        **attrs: Any,
    ) -> list[str]:
        """Adds a node "scope/op". Returns its results' names: those given, where "" makes one and "-" leaves it out."""
        name = self.unique(f"{scope}/{op}" if scope else op)
        named = [
            "" if given == "-" else given or (name if i == 0 else self.unique(f"{name}:{i}"))
            for i, given in enumerate(outputs)
        ]
        kept = {key: value for key, value in attrs.items() if value is not None}
        self.nodes.append(helper.make_node(op, list(inputs), named, name=name, domain=domain, **kept))
        return named

    def constant(self, array: np.ndarray, name: str) -> str:
        """Returns the name of a small initializer. Equal arrays share one."""
        key = f"{array.dtype}{list(array.shape)}{array.tobytes()!r}"
        if key not in self.small:
            self.small[key] = numpy_helper.from_array(np.ascontiguousarray(array), self.unique(name))
        return self.small[key].name

    def stream(self, tensors: Sequence[tuple[str, str, tuple[int, ...]]], chunks: Chunks) -> list[str]:
        """Adds initializers (name, dtype, shape) to the data file. Returns their names, made unique."""
        return self.data.add([Stored(self.unique(name), dtype, shape) for name, dtype, shape in tensors], chunks)

    def serialized(self, data_name: str) -> bytes:
        """Returns model.onnx, whose weights are in the file `data_name` beside it."""
        initializers = list(self.small.values())
        for stream in self.data.streams:
            initializers += map(lambda t, at: _external(t, at, data_name), stream.tensors, stream.offsets)
        graph = helper.make_graph(
            self.nodes, self.name, self.inputs, self.outputs, initializers, value_info=self.value_info
        )
        opsets = [helper.make_opsetid("", self.opset), *(helper.make_opsetid(name, 1) for name in self.domains)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="tensorwright")
        data: bytes = model.SerializeToString(deterministic=True)
        return data

    def write_data(self, sink: Any, progress: Callable[[int, int], None] = lambda done, total: None) -> None:
        """Writes the data file in order. `progress` gets (bytes done, bytes in all)."""
        self.data.write(sink, progress)

    @property
    def total_bytes(self) -> int:
        return self.data.total_bytes


def _alignment(size: int) -> int:
    return LARGE if size >= 16 * LARGE else SMALL


def _external(tensor: Stored, offset: int, data_name: str) -> onnx.TensorProto:
    proto = onnx.TensorProto(name=tensor.name, data_type=TYPES[tensor.dtype], dims=tensor.shape)
    proto.data_location = TensorProto.EXTERNAL
    for key, value in (("location", data_name), ("offset", str(offset)), ("length", str(tensor.bytes))):
        proto.external_data.add(key=key, value=value)
    return proto
