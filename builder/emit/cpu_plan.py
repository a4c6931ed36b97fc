"""Writes plan.bin of target cpu: a "lowered" graph with its memory plan, as records (runtime/core/plan/plan_format.h).

The emitter reads, besides the nodes (one instruction each):
    node.attrs["buffers"]        buffer index of every result, in order; -1 for a cache, which has no buffer
    graph.facts                  those named in FACTS
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tensorwright.builder.emit.cpu_weights import ConstantArray, WeightTable
from tensorwright.engine_format.dtypes import NUMBERS
from tensorwright.engine_format.weight_layouts import GATED, RAW, WeightLayout
from tensorwright.errors import BuildError, LoweringError
from tensorwright.ir.facts import Facts
from tensorwright.ir.graph import SOURCES, Graph, Node, Value
from tensorwright.ir.ops import instructions
from tensorwright.ir.records import MAX_FLOATS, MAX_INS, MAX_INTS, MAX_OUTS, MAX_WEIGHTS, SHARED, Instruction
from tensorwright.models.read_weights import TensorSource
from tensorwright.plugins.matmul.op import EPILOGUE_NONE

MAGIC = b"TWCPUPLN"
VERSION = 3
KINDS = {"tokens": 0, "rows": 1}

FACTS = (
    "dtype", "vocab_size", "max_seq_len", "block_size", "kv_layers", "buffers", "token_arena_bytes", "row_arena_bytes",
)  # fmt: skip
"""The facts of the graph that stand in a plan."""

HEADER = struct.Struct("<8sIIQQ10IiIQQ")
KV_LAYER = struct.Struct("<3I2H3I")
STATE = struct.Struct("<Q")
BUFFER = struct.Struct("<4IQ")
WEIGHT = struct.Struct("<4IQQII")
INSTRUCTION = struct.Struct(f"<II{MAX_INS}i{MAX_OUTS}i{MAX_WEIGHTS}i{MAX_INTS}i{MAX_FLOATS}f")


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
        """Returns the offset of a NUL-terminated string in the table. Equal strings are stored once."""
        if text not in self.name_offsets:
            self.name_offsets[text] = len(self.names)
            self.names += text.encode().replace(b"\0", b"?") + b"\0"
        return self.name_offsets[text]

    def instruction(self, node: Node) -> bytes:
        record = instructions()[node.op]
        buffers = self._operands(node)
        outs = self._results(node)
        weights = self._weights(node, record)
        for name in record.attrs:
            _attr(node, name)
        if record.encode is not None:
            ints, floats = record.encode(node.attrs)
        else:
            ints = [_int_attr(node, name, record) for name in record.ints]
            floats = [float(_attr(node, name)) for name in record.floats]
        return INSTRUCTION.pack(
            record.number,
            self.name(node.scope or node.outputs[0].name),
            *_padded(buffers, MAX_INS, -1, node),
            *_padded(outs, MAX_OUTS, -1, node),
            *_padded(weights, MAX_WEIGHTS, -1, node),
            *_padded(ints, MAX_INTS, 0, node),
            *_padded(floats, MAX_FLOATS, 0.0, node),
        )

    def _operands(self, node: Node) -> list[int]:
        """Returns the buffers of the operands that an instruction computes: not of weights, metadata and caches."""
        values = [
            v
            for v in node.inputs
            if v is not None and v.node is not None and v.node.op not in SOURCES and not v.is_cache
        ]
        for value in values:
            if value not in self.buffer_of:
                raise LoweringError(f"{node.op} %{node.outputs[0].name} reads %{value.name}, which has no buffer")
        return [self.buffer_of[v] for v in values]

    def _results(self, node: Node) -> list[int]:
        indices = _attr(node, "buffers")
        pairs = list(zip(node.outputs, indices, strict=True))
        self.buffer_of.update({v: i for v, i in pairs if not v.is_cache})
        return [i for v, i in pairs if not v.is_cache]

    def _weights(self, node: Node, record: Instruction) -> list[int]:
        """Returns the places of the weights, -1 for one that is absent."""
        halves = record.kind == "product" and _int_attr(node, "epilogue", record) != EPILOGUE_NONE
        halves = halves or node.attrs.get("gated", False)
        pairs = list(zip(node.inputs, record.operands, strict=False))
        others = [v for v, operand in pairs if operand.kind != SHARED] + list(node.inputs[len(record.operands) :])
        if any(v is not None and v.is_stored for v in others):
            raise LoweringError(f"{node.op} %{node.outputs[0].name} takes at most {len(record.weights)} weights")
        return [
            -1
            if value is None
            else self._weight(
                value, replace(operand.layout, gated=operand.layout.gated or (halves and operand.layout.kind in GATED))
            )
            for value, operand in pairs
            if operand.kind == SHARED
        ]

    def _weight(self, value: Value, layout: WeightLayout) -> int:
        source = value.producer
        if layout.kind == "quantized":
            return self._quantized_weight(source, layout)
        dtype = value.dtype if layout.kind == "panels" else "float32"
        if source.op == "constant":
            array = np.atleast_1d(np.asarray(source.attrs["value"], np.float32))
            return self.weights.add(ConstantArray.of(array), layout, value.dtype, name=value.name)
        wanted = source.attrs.get("layout", layout)
        if wanted != layout and not (wanted == RAW and layout.kind == "bias"):
            raise self._misfit(value, layout)
        return self.weights.add(source.attrs["expr"], layout, dtype, name=self._name_of(value))

    def _quantized_weight(self, weight: Node, layout: WeightLayout) -> int:
        """Adds a weight in the layout that the weight itself names, which also names the format."""
        wanted: WeightLayout | None = weight.attrs.get("layout")
        if wanted is None or wanted.format is None or wanted.without_format() != layout:
            raise self._misfit(weight.output, layout)
        name = self._name_of(weight.output)
        return self.weights.add(weight.attrs["expr"], wanted, wanted.format.codec, name=name)

    @staticmethod
    def _name_of(weight: Value) -> str:
        """Returns "" for a weight with the name of its expression. That of experts would list hundreds of tensors."""
        return weight.name if weight.rank == 3 else ""

    @staticmethod
    def _misfit(weight: Value, layout: WeightLayout) -> LoweringError:
        wanted = weight.producer.attrs.get("layout", "")
        return LoweringError(f"weight %{weight.name} has layout '{wanted}', its use needs '{layout}'")


def emit_cpu_plan(graph: Graph, source: TensorSource) -> CpuPlan:
    """Returns the plan of a lowered graph. Reads shapes from `source`, but no weight bytes.

    Raises LoweringError, which names the node, for a node without a record, and BuildError for a missing fact.
    """
    _check(graph)
    emitter = _Emitter(graph, WeightTable(source))
    nodes = [n for n in graph.nodes if n.op not in SOURCES]
    instructions = b"".join(emitter.instruction(node) for node in nodes)
    weights = b"".join(
        WEIGHT.pack(NUMBERS[w.key.dtype], w.layout_number, w.n, w.k, w.offset, w.bytes, emitter.name(w.name), w.group)
        for w in emitter.weights.plans
    )
    states = b"".join(STATE.pack(layer.bytes) for layer in graph.facts.state_layers)
    caches = _kv_layers(graph.facts) + states
    tables = caches + _buffers(graph.facts) + weights + instructions + bytes(emitter.names)
    return CpuPlan(_header(emitter, len(nodes), len(tables)) + tables, emitter.weights)


def _kv_layers(facts: Facts) -> bytes:
    return b"".join(
        KV_LAYER.pack(
            layer.group,
            layer.kv_heads,
            layer.head_dim,
            NUMBERS[layer.dtype_or(facts.dtype)],
            layer.chunked,
            layer.window,
            layer.v_dim,
            layer.sink_tokens,
        )
        for layer in facts.kv_layers
    )


def _buffers(facts: Facts) -> bytes:
    return b"".join(
        BUFFER.pack(KINDS[buffer.kind], NUMBERS[buffer.dtype], buffer.cols, buffer.stride, buffer.offset)
        for buffer in facts.buffers
    )


def _header(emitter: _Emitter, instructions: int, table_bytes: int) -> bytes:
    """Returns the header of a plan whose tables have `table_bytes` bytes."""
    facts = emitter.graph.facts
    return HEADER.pack(
        MAGIC,
        VERSION,
        HEADER.size,
        HEADER.size + table_bytes,
        emitter.weights.total_bytes,
        facts.vocab_size,
        facts.max_seq_len,
        facts.block_size,
        NUMBERS[facts.dtype],
        len(facts.kv_layers),
        1 + max((layer.group for layer in facts.kv_layers), default=-1),
        len(facts.buffers),
        len(emitter.weights.plans),
        instructions,
        len(emitter.names),
        -1 if is_sent(emitter.graph) else emitter.buffer_of[emitter.graph.outputs[0]],
        len(facts.state_layers),
        facts.token_arena_bytes,
        facts.row_arena_bytes,
    )


def is_sent(graph: Graph) -> bool:
    """Returns whether a graph is of a stage that sends what it computes to the next one, and so has no logits."""
    return graph.outputs[0].producer.op == "send"


def _check(graph: Graph) -> None:
    if graph.stage != "lowered":
        raise BuildError(f"the cpu emitter needs a graph at stage lowered, got {graph.stage}")
    missing = [name for name in FACTS if name not in graph.facts]
    if missing:
        raise BuildError(f"the lowered graph lacks the facts {', '.join(missing)}; has plan_memory run?")
    wanted = 3 if graph.find("draft_features") else 1
    if len(graph.outputs) != wanted and not is_sent(graph):
        raise LoweringError(
            f"the model must have one output, the logits, or with heads three, not {len(graph.outputs)}"
        )
    known = instructions()
    for node in graph.nodes:
        if node.op not in known and node.op not in SOURCES:
            where = f" in {node.scope}" if node.scope else ""
            raise LoweringError(f"target cpu has no instruction for {node.op} %{node.outputs[0].name}{where}")


def _attr(node: Node, name: str) -> Any:
    if name not in node.attrs:
        raise LoweringError(f"{node.op} %{node.outputs[0].name} has no attribute {name!r}")
    return node.attrs[name]


def _int_attr(node: Node, name: str, record: Instruction) -> int:
    value = _attr(node, name)
    words = record.words.get(name, ())
    if value in words:
        return words.index(value)
    if not isinstance(value, int):
        raise LoweringError(f"{node.op} %{node.outputs[0].name}: attribute {name!r} must be an int, not {value!r}")
    return value


def _padded(items: Iterable, size: int, filler: float, node: Node) -> list:
    padded = list(items)
    if len(padded) > size:
        raise LoweringError(f"{node.op} %{node.outputs[0].name} has more operands than an instruction holds")
    return padded + [filler] * (size - len(padded))
