"""Registers our plugins with TensorRT: `register(trt)`, before an ONNX file is parsed or an engine deserialized.

In the build phase a creator gets the attributes of an ONNX node. In the runtime phase it gets the fields that the
plugin wrote into the plan, with its kernels: nothing is compiled then, and Triton is not needed.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from tensorwright.errors import EngineError
from tensorwright.plugins.collectives.tensorrt import OPS as COLLECTIVES
from tensorwright.plugins.gpu.build_context import PluginContext, build_context, run_context
from tensorwright.plugins.gpu.tensorrt_base import NAMESPACE, VERSION, plugin_class
from tensorwright.plugins.gpu.tensorrt_op import PluginOp
from tensorwright.plugins.paged_attention.tensorrt import PAGED_ATTENTION
from tensorwright.plugins.quantized_matmul.tensorrt import WEIGHT_ONLY_LINEAR
from tensorwright.plugins.rms_norm.tensorrt import ADD_RMS_NORM, RMS_NORM
from tensorwright.plugins.rotary.tensorrt import ROTARY_KV_WRITE

OPS = (ROTARY_KV_WRITE, PAGED_ATTENTION, ADD_RMS_NORM, RMS_NORM, WEIGHT_ONLY_LINEAR, *COLLECTIVES)
_registered: dict[tuple[str, str], Any] = {}
"""Creators by (module, op). TensorRT does not keep them alive, so this dictionary does."""


def register(trt: Any, ops: tuple[PluginOp, ...] = OPS) -> None:
    """Registers the creators with `tensorrt` or `tensorrt_rtx`, once per process."""
    for op in ops:
        key = (trt.__name__, op.name)
        if key in _registered:
            continue
        creator = make_creator(trt, op)
        if not trt.get_plugin_registry().register_creator(creator, NAMESPACE):
            raise EngineError(
                f"{trt.__name__} has a plugin {NAMESPACE}::{op.name} version {VERSION} already, which is not ours: "
                "do not load another library of that name in this process"
            )
        _registered[key] = creator


def make_creator(trt: Any, op: PluginOp) -> Any:
    """Returns an IPluginCreatorV3One of this op."""

    class Creator(trt.IPluginCreatorV3One):
        def __init__(self) -> None:
            trt.IPluginCreatorV3One.__init__(self)
            self.name, self.plugin_version, self.plugin_namespace = op.name, VERSION, NAMESPACE
            kinds = {int: (np.int32, trt.PluginFieldType.INT32), float: (np.float32, trt.PluginFieldType.FLOAT32)}
            self._data = {name: np.zeros(0, kinds[kind][0]) for name, kind in op.attrs.items()}
            self.field_names = trt.PluginFieldCollection(
                [trt.PluginField(name, data, kinds[op.attrs[name]][1]) for name, data in self._data.items()]
            )

        def create_plugin(self, name: str, fields: Any, phase: Any) -> Any:
            building = phase == trt.TensorRTPhase.BUILD
            context = build_context() if building else run_context()
            try:
                return (
                    build_plugin(trt, op, name, fields, context)
                    if building
                    else restore_plugin(trt, op, name, fields, context)
                )
            except Exception as error:
                context.note(f"{op.name} {name}, create_plugin", error)
                raise

    return Creator()


def build_plugin(trt: Any, op: PluginOp, name: str, fields: Any, context: PluginContext) -> Any:
    """Makes the plugin from the attributes of an ONNX node."""
    given = {field.name: np.asarray(field.data).ravel() for field in fields if field.name in op.attrs}
    attrs = op.read_attrs({key: data[0] for key, data in given.items() if data.size})
    return plugin_class(trt)(op, name, attrs, context)


def restore_plugin(trt: Any, op: PluginOp, name: str, fields: Any, context: PluginContext) -> Any:
    """Makes the plugin from the fields of a plan."""
    data = {field.name: field.data for field in fields}
    missing = [key for key in (*op.attrs, "dtypes", "kernels_digest", "workspace_bytes") if key not in data]
    if missing:
        raise EngineError(f"{op.name} {name}: the plan lacks its {', '.join(missing)}: rebuild the engine")
    plugin = build_plugin(trt, op, name, fields, context)
    plugin.dtypes = json.loads(_bytes(data["dtypes"]))
    plugin.digest = _bytes(data["kernels_digest"]).decode()
    plugin.workspace_bytes = int(np.asarray(data["workspace_bytes"]).ravel()[0])
    if "kernels" in data:
        plugin.is_carrier = True
        if context.add(_bytes(data["kernels"])) != plugin.digest:
            raise EngineError(f"{op.name} {name}: the GPU kernels in the plan were altered: rebuild the engine")
    return plugin


def _bytes(data: Any) -> bytes:
    """Returns a field's data as bytes: a string, bytes, or an array of int8."""
    return data.encode() if isinstance(data, str) else bytes(memoryview(data))
