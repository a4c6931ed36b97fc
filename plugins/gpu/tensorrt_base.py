"""Makes a PluginOp a TensorRT plugin: IPluginV3 with the core, build (V2: aliased outputs) and runtime capabilities.

`plugin_class(trt)` makes the class for the module `tensorrt` or `tensorrt_rtx`. TensorRT calls all its methods. If
TensorRT would take an exception for an answer, or crash, the method returns a refusal instead. In both cases the
exception is noted in the PluginContext, which raises it for the user.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from tensorwright.engine_format.dtypes import ITEM_BYTES
from tensorwright.errors import GraphError, KernelError
from tensorwright.plugins.gpu.build_context import PluginContext
from tensorwright.plugins.gpu.launch import Tensor
from tensorwright.plugins.gpu.prepared_calls import LayerCall, MadeLaunch, Recent, Shapes, stand_in
from tensorwright.plugins.gpu.tensorrt_op import UNKNOWN, Dim, Operand, PluginOp, constant

VERSION = "1"
NAMESPACE = "tensorwright"
WORKSPACE = "workspace"
_TYPES = {"FLOAT": "float32", "HALF": "float16", "BF16": "bfloat16", "INT8": "int8", "INT32": "int32"}
"""The names in TensorRT of the types that kernels take."""
_R = TypeVar("_R")


def _noted(method: Callable[..., _R]) -> Callable[..., _R]:
    """Wraps a method whose exceptions TensorRT turns into a failure of the build or of the step."""

    @functools.wraps(method)
    def call(self: Any, *args: Any) -> _R:
        try:
            return method(self, *args)
        except Exception as error:
            self.context.note(f"{self.op.name} {self.layer}, {method.__name__}", error)
            raise

    return call


def _answering(refusal: Any) -> Callable[[Callable[..., _R]], Callable[..., _R]]:
    """Wraps a method whose exceptions would crash TensorRT, or pass unnoticed; `refusal` is returned instead."""

    def decorate(method: Callable[..., _R]) -> Callable[..., _R]:
        @functools.wraps(method)
        def call(self: Any, *args: Any) -> _R:
            try:
                return method(self, *args)
            except Exception as error:
                self.context.note(f"{self.op.name} {self.layer}, {method.__name__}", error)
                return refusal

        return call

    return decorate


class PluginMethods:
    """The methods of a plugin that do not depend on the base classes of its module."""

    trt: Any

    def _set_up(self, op: PluginOp, layer: str, attrs: dict[str, int | float], context: PluginContext) -> None:
        self.op, self.layer, self.attrs, self.context = op, layer, attrs, context
        self.dtypes: dict[str, str] = {}
        self.digest = ""
        self.workspace_bytes = 0
        self.is_carrier = False
        self.plugin_name, self.plugin_version, self.plugin_namespace = op.name, VERSION, NAMESPACE
        self.num_outputs = len(self._outputs())
        self.timing_cache_id = ""
        self.metadata_string = ", ".join(f"{name}={value}" for name, value in attrs.items())
        self._calls: Recent[Any] = Recent()
        self._made_by_all: Recent[list[MadeLaunch]] | None = None
        self._call: LayerCall | None = None
        self._is_checked = False

    # core

    def get_capability_interface(self, kind: Any) -> Any:
        return self

    def clone(self) -> Any:
        copy = type(self)(self.op, self.layer, self.attrs, self.context)  # type: ignore[call-arg]
        copy.dtypes, copy.digest, copy.is_carrier = self.dtypes, self.digest, self.is_carrier
        copy.workspace_bytes = self.workspace_bytes
        return copy

    # build

    @_noted
    def get_output_data_types(self, input_types: Sequence[Any]) -> list[Any]:
        self.dtypes = self.op.dtypes(self.attrs, [self._name(kind) for kind in input_types])
        names = {name: kind for kind, name in _TYPES.items()}
        return [getattr(self.trt.DataType, names[self.dtypes[o.name]]) for o in self._outputs()]

    @_noted
    def get_output_shapes(self, inputs: Sequence[Any], shape_inputs: Sequence[Any], exprs: Any) -> list[Any]:
        """Returns the shapes, and compiles: an error now ends the parse, a later one might end the process."""
        known = [[dim.get_constant_value() if dim.is_constant() else UNKNOWN for dim in dims] for dims in inputs]
        sizes = self.op.sizes(self.attrs, known)
        if not self.digest:
            attrs = self.op.full_attrs(self.attrs, sizes)
            specs = ((sm, tuple(self.op.kernels(attrs, self.dtypes, sm))) for sm in self.context.sms)
            self.digest = self.context.compile(specs)
        return [self.trt.DimsExprs([self._dim(dim, inputs, exprs) for dim in o.dims]) for o in self._outputs()]

    def _dim(self, dim: Dim, inputs: Sequence[Any], exprs: Any) -> Any:
        size = constant(self.attrs, dim)
        if size is not None:
            return exprs.constant(size)
        index, axis = self.op.source(str(dim), self.attrs, len(inputs))
        return inputs[index][axis]

    @_answering(False)
    def supports_format_combination(self, position: int, operands: Sequence[Any], num_inputs: int) -> bool:
        """Accepts row-major memory, with each operand's only type. Operands after `position` are not set yet."""
        desc = operands[position].desc
        if desc.format != self.trt.TensorFormat.LINEAR:
            return False
        types = [self._name(o.desc.type) for o in operands[: position + 1]]
        expected = self.op.expected(self.attrs, num_inputs, types[:num_inputs])
        return types[position] == list(expected.values())[position]

    @_answering(None)
    def configure_plugin(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Checks the profile's sizes, which the parser did not know, and computes the workspace for the largest."""
        for shapes in ([x.min for x in inputs], [x.opt for x in inputs]):
            self.op.sizes(self.attrs, [tuple(shape) for shape in shapes])
        self.workspace_bytes = self._workspace_bytes(inputs, outputs)

    @_answering(0)
    def get_workspace_size(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> int:
        return self._workspace_bytes(inputs, outputs)

    def _workspace_bytes(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> int:
        shapes = [tuple(x.max) for x in (*inputs, *outputs)]
        attrs = self.op.full_attrs(self.attrs, self.op.sizes(self.attrs, shapes[: len(inputs)]))
        return self.op.workspace_bytes(attrs, dict(zip(self.dtypes, shapes, strict=True)))

    def get_valid_tactics(self) -> list[int]:
        """Returns none: the plugin has no tactics of its own."""
        return []

    @_answering(-1)
    def get_aliased_input(self, output: int) -> int:
        """Returns the input whose memory an output shares, -1 for none: the pages are written in place."""
        alias = self.op.alias_of(output, self.attrs)
        if not alias:
            return -1
        names = [o.name for o in self.op.inputs if not o.when or self.attrs[o.when]]
        return names.index(alias)

    # runtime

    def set_tactic(self, tactic: int) -> None:
        """Does nothing: there is only one tactic."""

    def on_shape_change(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Does nothing: `enqueue` reads the shapes of each call."""

    def attach_to_context(self, resources: Any) -> Any:
        return self.clone()

    @_noted
    def enqueue(
        self,
        input_desc: Sequence[Any],
        output_desc: Sequence[Any],
        inputs: Sequence[int],
        outputs: Sequence[int],
        workspace: int,
        stream: int,
    ) -> None:
        if self.context.sms:  # a build on a GPU times layers on made-up numbers, which are bad block tables
            return
        # A slice of Dims is a tuple. It takes a fifth of the time of tuple(Dims).
        shapes = tuple([desc.dims[:] for desc in (*input_desc, *output_desc)])
        addresses = (*inputs, *outputs, workspace)
        if not self._is_checked:
            self._check_types((*input_desc, *output_desc))
            self._is_checked = True
        if self.op.collective is not None:
            call = self._calls.find((shapes, addresses), lambda: self._together(shapes, addresses[:-1], len(inputs)))
            self.context.collectives.start(call, int(stream))
            return
        call, driver = self._call, self.context.driver
        if call is None:
            call = self._call = LayerCall(driver, self._shared(len(inputs)))
        call.fill(self._calls.find(shapes, lambda: self._made(shapes, len(inputs))), addresses)
        for prepared in call.started:
            driver.start(prepared, int(stream))

    @_answering(None)
    def get_fields_to_serialize(self) -> Any:
        if not self.digest:
            raise KernelError(f"{self.op.name} {self.layer}: TensorRT writes a plugin that it has not asked for shapes")
        values: dict[str, Any] = dict(self.attrs)
        values |= {"dtypes": json.dumps(self.dtypes), "kernels_digest": self.digest}
        values["workspace_bytes"] = np.array([self.workspace_bytes], np.int64)
        if self.is_carrier or (self.context.sms and self.context.carries(self.digest, self.layer)):
            values["kernels"] = self.context.kernel_bytes(self.digest)
        # TensorRT keeps only pointers, so the arrays must live as long as the plugin.
        self._field_data = [(name, *_field(value)) for name, value in values.items()]
        kinds = self.trt.PluginFieldType
        fields = [self.trt.PluginField(name, data, getattr(kinds, kind)) for name, data, kind in self._field_data]
        self._fields = self.trt.PluginFieldCollection(fields)
        return self._fields

    def _outputs(self) -> tuple[Operand, ...]:
        return self.op.outputs_of(self.attrs)

    def _check_types(self, descs: Sequence[Any]) -> None:
        got = [self._name(desc.type) for desc in descs]
        if got != list(self.dtypes.values()):
            raise KernelError(f"{self.op.name} {self.layer}: it was built for {self.dtypes}, TensorRT gives it {got}")

    def _made(self, shapes: Shapes, num_inputs: int) -> list[MadeLaunch]:
        """Returns the launches of calls with these shapes, which another layer may have made."""
        made = self._made_by_all
        if made is None:
            kind = (self.op.name, *self.attrs.items(), *self.dtypes.items(), self.digest, self.workspace_bytes)
            made = self._made_by_all = self.context.made_launches(kind)
        return made.find(shapes, lambda: self._launches(shapes, num_inputs))

    def _launches(self, shapes: Shapes, num_inputs: int) -> list[MadeLaunch]:
        """Makes the launches of calls with these shapes. The workspace is the operand behind all others."""
        attrs = self.op.full_attrs(self.attrs, self.op.sizes(self.attrs, shapes[:num_inputs]))
        floats = self.workspace_bytes // ITEM_BYTES["float32"]
        scratch = Tensor.dense(WORKSPACE, stand_in(len(shapes)), (floats,), "float32") if floats else None
        inputs, outputs = self._operands(shapes, [stand_in(index) for index in range(len(shapes))], num_inputs)
        kernels, sm = self.context.kernels(self.digest), self.context.driver.sm()
        launches = self.op.launches(attrs, inputs, outputs, scratch, kernels.code_sm(sm))
        return [MadeLaunch(*kernels.find(one.kernel, one.variant, sm), one) for one in launches]

    def _together(self, shapes: Shapes, addresses: Sequence[int], num_inputs: int) -> Any:
        """Prepares what ranks do together."""
        assert self.op.collective is not None
        inputs, outputs = self._operands(shapes, addresses, num_inputs)
        return self.context.collectives.prepare(self.op.collective(inputs, outputs))

    def _operands(
        self, shapes: Shapes, addresses: Sequence[int], num_inputs: int
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Returns inputs and outputs by name. An output that shares an input's memory is that input."""
        tensors = [
            Tensor.dense(name, int(address), shape, kind)
            for (name, kind), address, shape in zip(self.dtypes.items(), addresses, shapes, strict=True)
        ]
        for output, shared in self._shared(num_inputs):
            tensors[output] = tensors[shared]
        inputs, outputs = ({t.name: t for t in part} for part in (tensors[:num_inputs], tensors[num_inputs:]))
        return inputs, outputs

    def _shared(self, num_inputs: int) -> list[tuple[int, int]]:
        """Returns the numbers (output, input) of operands that share memory."""
        names = list(self.dtypes)[:num_inputs]
        return [(num_inputs + at, names.index(o.alias)) for at, o in enumerate(self._outputs()) if o.alias]

    def _name(self, kind: Any) -> str:
        if kind.name not in _TYPES:
            raise GraphError(f"{self.op.name}: operands must be of {', '.join(_TYPES.values())}, got {kind.name}")
        return _TYPES[kind.name]


def _field(value: Any) -> tuple[np.ndarray, str]:
    """Returns the data of a PluginField and the name of its type."""
    if isinstance(value, np.ndarray):
        return value, "INT64"
    if isinstance(value, bytes):
        return np.frombuffer(value, np.int8), "INT8"
    if isinstance(value, str):
        return np.frombuffer(value.encode(), np.int8), "CHAR"
    if isinstance(value, float):
        return np.array([value], np.float32), "FLOAT32"
    return np.array([value], np.int32), "INT32"


@functools.cache
def plugin_class(trt: Any) -> type:
    """Returns the plugin class for the module `tensorrt` or `tensorrt_rtx`."""

    class Plugin(PluginMethods, trt.IPluginV3, trt.IPluginV3OneCore, trt.IPluginV3OneBuildV2, trt.IPluginV3OneRuntime):
        def __init__(self, op: PluginOp, layer: str, attrs: dict[str, int | float], context: PluginContext) -> None:
            # pybind11 requires that each base is initialised by name.
            for base in (trt.IPluginV3, trt.IPluginV3OneCore, trt.IPluginV3OneBuildV2, trt.IPluginV3OneRuntime):
                base.__init__(self)
            self._set_up(op, layer, attrs, context)

    Plugin.trt = trt
    return Plugin
