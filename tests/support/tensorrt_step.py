"""Made-up calls of our TensorRT plugins: descriptions and addresses as TensorRT hands them to enqueue."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from tensorwright.plugins.gpu.launch import Tensor
from tensorwright.plugins.gpu.tensorrt_op import PluginOp

TYPES = {"float32": "FLOAT", "float16": "HALF", "bfloat16": "BF16", "int8": "INT8", "int32": "INT32"}
FIRST, GAP = 0x7F00_0000_0000, 1 << 24
KV = {"heads": 4, "kv_heads": 2, "head_dim": 32}
PAGE = (9, 2, 32, 32)


@dataclass(frozen=True)
class Step:
    """One call. `outputs` by the names that launch.py has for them."""

    name: str
    op: str
    attrs: Mapping[str, Any]
    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]
    kernel_sizes: Mapping[str, int]
    workspace: Tensor | None = None
    starts: bool = True

    def arguments(self, trt: Any) -> tuple[Any, ...]:
        """Of enqueue, but for the stream."""
        operands = [*self.inputs.values(), *self.outputs.values()]
        descs = [describe(trt, tensor) for tensor in operands]
        addresses = [tensor.address for tensor in operands]
        n = len(self.inputs)
        return descs[:n], descs[n:], addresses[:n], addresses[n:], self.workspace.address if self.workspace else 0

    def moved(self, by: int) -> Step:
        """The same call in other memory."""
        parts = (self.inputs, self.outputs)
        inputs, outputs = (
            {name: dataclasses.replace(t, address=t.address + by) for name, t in part.items()} for part in parts
        )
        return dataclasses.replace(self, inputs=inputs, outputs=outputs)


def describe(trt: Any, tensor: Tensor) -> Any:
    desc = trt.PluginTensorDesc()
    desc.dims, desc.type, desc.format = (
        tensor.shape,
        getattr(trt.DataType, TYPES[tensor.dtype]),
        trt.TensorFormat.LINEAR,
    )
    return desc


class Places:
    """Hands out addresses."""

    def __init__(self) -> None:
        self.next = FIRST

    def __call__(self, name: str, shape: tuple[int, ...], dtype: str) -> Tensor:
        self.next += GAP
        return Tensor.dense(name, self.next, shape, dtype)

    def all(self, **operands: tuple[tuple[int, ...], str]) -> dict[str, Tensor]:
        return {name: self(name, shape, dtype) for name, (shape, dtype) in operands.items()}


def steps() -> list[Step]:
    found = [write("write", 7), write("write of one token", 1), write("nothing to write", 0)]
    found += [write("write into int8", 7, int8=True), write("write without rotary", 7, rotary_dim=0)]
    found += [attend("prefill", 40, 1, 4), attend("decode", 3, 3, 4), attend("one token", 1, 1, 4)]
    found += [attend("long decode", 3, 3, 64, floats=3 * 4 * 4 * 34)]
    found += [attend("int8 and sinks", 40, 3, 4, int8=True, sinks=True)]
    found += [norm("norm", 5, False), norm("norm of a sum", 5, True), linear("one row", 1), linear("many rows", 70)]
    return found


def write(name: str, tokens: int, int8: bool = False, rotary_dim: int = 16) -> Step:
    place = Places()
    kv = "int8" if int8 else "float16"
    inputs = place.all(qkv=((tokens, 256), "float16"))
    if rotary_dim:
        inputs |= place.all(table=((tokens, rotary_dim), "float32"))
    inputs |= place.all(slots=((tokens,), "int32"), k_pages=(PAGE, kv), v_pages=(PAGE, kv))
    if int8:
        inputs |= place.all(k_scales=(PAGE[:3], "float32"), v_scales=(PAGE[:3], "float32"))
    outputs = place.all(q=((tokens, 128), "float16"))
    outputs |= {key: tensor for key, tensor in inputs.items() if key[0] in "kv"}
    attrs = {**KV, "rotary_dim": rotary_dim, "int8_kv": int(int8)}
    return Step(name, "RotaryKvWrite", attrs, inputs, outputs, {}, starts=tokens > 0)


def attend(
    name: str, tokens: int, seqs: int, max_blocks: int, int8: bool = False, sinks: bool = False, floats: int = 0
) -> Step:
    place = Places()
    kv = "int8" if int8 else "float16"
    inputs = place.all(q=((tokens, 128), "float16"), k_pages=(PAGE, kv), v_pages=(PAGE, kv))
    if int8:
        inputs |= place.all(k_scales=(PAGE[:3], "float32"), v_scales=(PAGE[:3], "float32"))
    inputs |= place.all(seq_starts=((seqs + 1,), "int32"), context_lens=((seqs,), "int32"))
    inputs |= place.all(block_tables=((seqs, max_blocks), "int32"))
    if sinks:
        inputs |= place.all(sinks=((4,), "float32"))
    outputs = place.all(out=((tokens, 128), "float16"))
    attrs = {**KV, "scale": 0.25, "window": 0, "softcap": 0.0, "has_sinks": int(sinks), "int8_kv": int(int8)}
    workspace = place("workspace", (floats,), "float32") if floats else None
    return Step(name, "PagedAttention", attrs, inputs, outputs, {"block_size": 32}, workspace)


def norm(name: str, rows: int, with_sum: bool) -> Step:
    place, shape = Places(), ((rows, 128), "float16")
    attrs = {"eps": 2.0**-10, "weight_offset": 1.0}  # numbers that float32 has
    weight = ((128,), "float32")
    if not with_sum:
        return Step(name, "RmsNorm", attrs, place.all(x=shape, w=weight), place.all(y=shape), {"channels": 128})
    inputs, outputs = place.all(x=shape, residual=shape, w=weight), place.all(y=shape, sum=shape)
    return Step(name, "AddRmsNorm", attrs, inputs, outputs, {"channels": 128})


def ranks_together() -> list[Step]:
    """What ranks do together: after another such thing, and as the first of a step."""
    x, earlier = ((5, 96), "bfloat16"), ((1, 1), "bfloat16")
    found = []
    for op, own, y, attrs in (
        ("AllReduce", {"x": x}, {"y": x}, {}),
        ("AllGather", {"x": x}, {"y": ((3, 5, 96), "bfloat16")}, {"ranks": 3}),
        ("Send", {"x": x}, {"done": earlier}, {}),
        ("Receive", {"like": ((5,), "bfloat16")}, {"y": x}, {"columns": 96}),
    ):
        for name, after in ((op, {}), (f"{op}, not the first", {"after": earlier})):
            place = Places()
            found.append(Step(name, op, attrs, place.all(**own, **after), place.all(**y), {}, starts=False))
    return found


def linear(name: str, rows: int) -> Step:
    place, k, n = Places(), 128, 64
    inputs = place.all(x=((rows, k), "float16"), packed=((k // 8, n), "int32"), scales=((k // 32, n), "float16"))
    outputs = place.all(y=((rows, n), "float16"))
    return Step(name, "WeightOnlyLinear", {"n": n, "k": k, "group": 32}, inputs, outputs, {})


@dataclass
class _Dim:
    """A fixed dimension, as the builder's expressions have them."""

    size: int

    def is_constant(self) -> bool:
        return True

    def get_constant_value(self) -> int:
        return self.size


class Module:
    """The module, but for the shape expressions, which only TensorRT's builder can make."""

    def __init__(self, trt: Any) -> None:
        self._trt = trt
        self.DimsExprs = list

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trt, name)


def make_plugin(trt: Any, op: PluginOp, step: Step, layer: str) -> Any:
    """A plugin after the calls that TensorRT's parser and builder make, with the step's shapes as largest ones."""
    from tensorwright.plugins.gpu.creators import make_creator

    fields = [(key, "FLOAT32", np.float32(v).tobytes()) for key, v in step.attrs.items() if op.attrs[key] is float]
    fields += [(key, "INT32", np.int32(v).tobytes()) for key, v in step.attrs.items() if op.attrs[key] is int]
    with make_fields(trt, fields) as collection:
        plugin = make_creator(trt, op).create_plugin(layer, collection, trt.TensorRTPhase.BUILD)
    inputs, outputs = list(step.inputs.values()), list(step.outputs.values())
    types = plugin.get_output_data_types([getattr(trt.DataType, TYPES[t.dtype]) for t in inputs])
    assert [kind.name for kind in types] == [TYPES[t.dtype] for t in outputs]
    plugin.trt = Module(trt)
    shapes = plugin.get_output_shapes([[_Dim(n) for n in t.shape] for t in inputs], [], SimpleNamespace(constant=_Dim))
    assert [tuple(dim.size for dim in dims) for dims in shapes] == [t.shape for t in outputs]
    plugin.trt = trt
    plugin = plugin.clone()
    ranges = [bounds(trt, tensor) for tensor in (*inputs, *outputs)]
    plugin.configure_plugin(ranges[: len(inputs)], ranges[len(inputs) :])
    return plugin


def bounds(trt: Any, tensor: Tensor) -> Any:
    ranges = trt.DynamicPluginTensorDesc()
    ranges.desc = describe(trt, tensor)
    ranges.min = ranges.opt = ranges.max = trt.Dims(tensor.shape)
    return ranges


@contextmanager
def make_fields(trt: Any, fields: list[tuple[str, str, bytes]]) -> Iterator[Any]:
    """A PluginFieldCollection of (name, type, bytes); it points into memory that lives as long as the context."""
    kinds = {"INT32": np.int32, "INT64": np.int64, "FLOAT32": np.float32}
    data = [np.frombuffer(raw, kinds.get(kind, np.int8)) for _, kind, raw in fields]
    kept = [
        trt.PluginField(name, array, getattr(trt.PluginFieldType, kind))
        for (name, kind, _), array in zip(fields, data, strict=True)
    ]
    yield trt.PluginFieldCollection(kept)
    del data, kept


def replay(path: str) -> int:
    """In a process of its own: a pickled (Step, fields) is restored and run; how many launches it starts."""
    import tensorrt_rtx as trt

    from support.recording_driver import RecordingDriver
    from tensorwright.plugins.gpu.build_context import running_with
    from tensorwright.plugins.gpu.creators import OPS, make_creator

    step, fields = pickle.loads(Path(path).read_bytes())
    (op,) = (op for op in OPS if op.name == step.op)
    driver = RecordingDriver(80)
    with running_with(driver), make_fields(trt, fields) as collection:
        plugin = make_creator(trt, op).create_plugin("layers.0", collection, trt.TensorRTPhase.RUNTIME)
    plugin.enqueue(*step.arguments(trt), 1)
    return len(driver.launches)
