"""plan.bin of target cpu: a graph at stage "lowered", memory planned, as records (runtime/core/plan/plan_format.h).

What it reads, besides the nodes (one instruction each):
    node.attrs["buffers"]        buffer index of every result, in order; -1 for a cache, which lives elsewhere
    graph.facts["buffers"]       [(kind, dtype, cols, stride_bytes, offset)], kind "tokens" or "rows"
    graph.facts["token_arena_bytes"], ["row_arena_bytes"]
    graph.facts["kv_layers"]     [{group, kv_heads, head_dim, window, dtype?}], without a dtype the activations'
    graph.facts["vocab_size"], ["max_seq_len"], ["block_size"], ["dtype"]
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tensorwright.builder.emit.cpu_weights import ConstantArray, WeightTable, format_of
from tensorwright.errors import BuildError, LoweringError
from tensorwright.ir.graph import Graph, Node, Value
from tensorwright.models.weights import TensorSource
from tensorwright.plugins.elementwise.op import encode
from tensorwright.plugins.matmul.op import EPILOGUE_NONE
from tensorwright.plugins.swiglu.op import ACTIVATIONS

MAGIC = b"TWCPUPLN"
VERSION = 2
DTYPES = {"float32": 0, "bfloat16": 1, "int8": 3, "int4": 4}
KINDS = {"tokens": 0, "rows": 1}

HEADER = struct.Struct("<8sIIQQ10IiIQQ")
KV_LAYER = struct.Struct("<6I")
BUFFER = struct.Struct("<4IQ")
WEIGHT = struct.Struct("<4IQQII")
INSTRUCTION = struct.Struct("<II4i2i2i8i4f")


@dataclass(frozen=True)
class OpRecord:
    """How one op becomes an instruction: its number, its weights' layouts, the attributes it stores, in order."""

    number: int
    weights: tuple[str, ...] = ()
    ints: tuple[str, ...] = ()
    floats: tuple[str, ...] = ()
    program: bool = False
    """The attribute `program` fills all ints and floats instead."""


OPS = {
    "embedding": OpRecord(1, ("panels",), ("ids",), ("scale",)),
    "rms_norm": OpRecord(2, ("raw",), (), ("eps", "weight_offset")),
    "matmul": OpRecord(3, ("panels", "bias"), ("epilogue", "n")),
    "quantized_matmul": OpRecord(13, ("quantized", "bias"), ("epilogue", "n")),
    "quantized_embedding": OpRecord(1, ("quantized",), ("ids",), ("scale",)),
    "rotary_table": OpRecord(4, ("raw",), (), ("scale",)),
    "rotary_kv_write": OpRecord(5, (), ("kv_layer", "heads", "rotary_dim")),
    "paged_attention": OpRecord(6, ("raw",), ("kv_layer", "heads"), ("scale", "softcap")),
    "gather_rows": OpRecord(7),
    "swiglu": OpRecord(8, (), ("activation",)),
    "add": OpRecord(9),
    "rms_norm_columns": OpRecord(10, ("raw",), ("start", "heads"), ("eps", "weight_offset")),
    "elementwise": OpRecord(11, ("raw",), program=True),
    "layer_norm": OpRecord(12, ("raw", "raw"), ("start", "heads", "width"), ("eps", "weight_offset")),
}


@dataclass
class CpuPlan:
    """The emitted plan: the bytes of plan.bin, and the weights that go with it."""

    data: bytes
    weights: WeightTable


@dataclass
class _Emitter:
    graph: Graph
    weights: WeightTable
    names: bytearray = field(default_factory=bytearray)
    name_offsets: dict[str, int] = field(default_factory=dict)
    buffer_of: dict[Value, int] = field(default_factory=dict)

    def name(self, text: str) -> int:
        """Offset of a NUL-terminated string in the table, each stored once."""
        if text not in self.name_offsets:
            self.name_offsets[text] = len(self.names)
            self.names += text.encode().replace(b"\0", b"?") + b"\0"
        return self.name_offsets[text]

    def instruction(self, node: Node) -> bytes:
        record = OPS[node.op]
        buffers = self._operands(node)
        outs = self._results(node)
        weights = self._weights(node, record)
        ints = [_int_attr(node, name) for name in record.ints]
        floats = [float(_attr(node, name)) for name in record.floats]
        if record.program:
            ints, floats = encode(_attr(node, "program"))
        return INSTRUCTION.pack(
            record.number,
            self.name(node.scope or node.outputs[0].name),
            *_padded(buffers, 4, -1, node),
            *_padded(outs, 2, -1, node),
            *_padded(weights, 2, -1, node),
            *_padded(ints, 8, 0, node),
            *_padded(floats, 4, 0.0, node),
        )

    def _operands(self, node: Node) -> list[int]:
        """Buffers of the operands that some instruction computes; weights, metadata and caches are not among them."""
        values = [
            v for v in node.inputs if v is not None and v.node is not None and v.node.op in OPS and v.dtype != "kv"
        ]
        for value in values:
            if value not in self.buffer_of:
                raise LoweringError(f"{node.op} %{node.outputs[0].name} reads %{value.name}, which has no buffer")
        return [self.buffer_of[v] for v in values]

    def _results(self, node: Node) -> list[int]:
        indices = _attr(node, "buffers")
        pairs = list(zip(node.outputs, indices, strict=True))
        self.buffer_of.update({v: i for v, i in pairs if v.dtype != "kv"})
        return [i for v, i in pairs if v.dtype != "kv"]

    def _weights(self, node: Node, record: OpRecord) -> list[int]:
        values = [
            v for v in node.inputs if v is not None and v.node is not None and v.node.op in ("weight", "constant")
        ]
        if len(values) > len(record.weights):
            raise LoweringError(f"{node.op} %{node.outputs[0].name} takes at most {len(record.weights)} weights")
        swiglu = node.op in ("matmul", "quantized_matmul") and _int_attr(node, "epilogue") != EPILOGUE_NONE
        return [
            self._weight(value, layout + ("_swiglu" if swiglu else ""))
            for value, layout in zip(values, record.weights, strict=False)
        ]

    def _weight(self, value: Value, layout: str) -> int:
        assert value.node is not None
        if layout.startswith("quantized"):
            return self._quantized_weight(value.node, layout)
        dtype = self.graph.facts["dtype"] if layout.startswith("panels") else "float32"
        if value.node.op == "constant":
            array = np.atleast_1d(np.asarray(value.node.attrs["value"], np.float32))
            return self.weights.add(ConstantArray.of(array), layout, dtype, name=value.name)
        wanted = value.node.attrs.get("layout", layout)
        if wanted != layout and not (wanted == "raw" and layout.startswith("bias")):
            raise LoweringError(f"weight %{value.name} has layout {wanted!r}, its use needs {layout!r}")
        return self.weights.add(value.node.attrs["expr"], layout, dtype)

    def _quantized_weight(self, weight: Node, layout: str) -> int:
        """The weight's own layout, which says the format too."""
        wanted = str(weight.attrs.get("layout", ""))
        fmt = format_of(wanted)
        if weight.op != "weight" or fmt is None or wanted.partition(":")[0] != layout:
            raise LoweringError(f"weight %{weight.outputs[0].name} has layout {wanted!r}, its use needs {layout!r}")
        return self.weights.add(weight.attrs["expr"], wanted, fmt.dtype)


def emit_cpu_plan(graph: Graph, source: TensorSource) -> CpuPlan:
    """The plan of a lowered graph; reads shapes from `source`, no weight bytes.

    Raises LoweringError that names a node without a record, BuildError for a fact that is missing.
    """
    _check(graph)
    facts = graph.facts
    emitter = _Emitter(graph, WeightTable(source))
    nodes = [n for n in graph.nodes if n.op not in ("input", "weight", "constant")]
    instructions = b"".join(emitter.instruction(node) for node in nodes)
    dtype = DTYPES[facts["dtype"]]
    layers = facts["kv_layers"]
    kv_layers = [
        KV_LAYER.pack(
            layer["group"],
            layer["kv_heads"],
            layer["head_dim"],
            DTYPES[layer.get("dtype", facts["dtype"])],
            layer["window"],
            0,
        )
        for layer in layers
    ]
    buffers = [
        BUFFER.pack(KINDS[kind], DTYPES[element], cols, stride, offset)
        for kind, element, cols, stride, offset in facts["buffers"]
    ]
    weights = [
        WEIGHT.pack(DTYPES[w.key.dtype], w.layout_number, w.n, w.k, w.offset, w.bytes, emitter.name(w.name), w.group)
        for w in emitter.weights.plans
    ]
    tables = b"".join([*kv_layers, *buffers, *weights, instructions, bytes(emitter.names)])
    header = HEADER.pack(
        MAGIC,
        VERSION,
        HEADER.size,
        HEADER.size + len(tables),
        emitter.weights.total_bytes,
        facts["vocab_size"],
        facts["max_seq_len"],
        facts["block_size"],
        dtype,
        len(kv_layers),
        1 + max((layer["group"] for layer in layers), default=-1),
        len(buffers),
        len(weights),
        len(nodes),
        len(emitter.names),
        emitter.buffer_of[graph.outputs[0]],
        0,
        facts["token_arena_bytes"],
        facts["row_arena_bytes"],
    )
    return CpuPlan(header + tables, emitter.weights)


def _check(graph: Graph) -> None:
    if graph.stage != "lowered":
        raise BuildError(f"the cpu emitter needs a graph at stage lowered, got {graph.stage}")
    needed = ("dtype", "vocab_size", "max_seq_len", "block_size", "kv_layers", "buffers")
    missing = [name for name in (*needed, "token_arena_bytes", "row_arena_bytes") if name not in graph.facts]
    if missing:
        raise BuildError(f"the lowered graph lacks the facts {', '.join(missing)}; has plan_memory run?")
    if len(graph.outputs) != 1:
        raise LoweringError(f"the model must have one output, the logits, not {len(graph.outputs)}")
    for node in graph.nodes:
        if node.op not in OPS and node.op not in ("input", "weight", "constant"):
            where = f" in {node.scope}" if node.scope else ""
            raise LoweringError(f"target cpu has no instruction for {node.op} %{node.outputs[0].name}{where}")


def _attr(node: Node, name: str) -> Any:
    if name not in node.attrs:
        raise LoweringError(f"{node.op} %{node.outputs[0].name} has no attribute {name!r}")
    return node.attrs[name]


def _int_attr(node: Node, name: str) -> int:
    value = _attr(node, name)
    if name == "activation" and value in ACTIVATIONS:
        return ACTIVATIONS.index(str(value))
    if not isinstance(value, int):
        raise LoweringError(f"{node.op} %{node.outputs[0].name}: attribute {name!r} must be an int, not {value!r}")
    return value


def _padded(items: Iterable, size: int, filler: float, node: Node) -> list:
    padded = list(items)
    if len(padded) > size:
        raise LoweringError(f"{node.op} %{node.outputs[0].name} has more operands than an instruction holds")
    return padded + [filler] * (size - len(padded))
