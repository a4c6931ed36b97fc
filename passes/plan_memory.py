"""plan_memory:  every result of the lowered graph gets a place in an arena, shared by results that never live together

There are two arenas, one measured in bytes per token and one in bytes per logit row. A buffer of C columns takes its
stride (C elements, rounded up to 64 bytes) per token or row, from `offset` on. Two buffers overlap only if they never
live together. A result takes the buffer of an operand if its op may work in place (`in_place` of its record) and no
node reads that operand afterwards.
This pass runs last, because the plan holds for this order of nodes only.

    node.attrs["buffers"]       index of the buffer of every result; -1 for a cache, which has none
    graph.facts.buffers         their places
    graph.facts.token_arena_bytes, row_arena_bytes, logits_buffer
"""

from __future__ import annotations

from dataclasses import dataclass

from tensorwright.engine_format.dtypes import ITEM_BYTES
from tensorwright.errors import PassError
from tensorwright.ir import Graph, Node, Value
from tensorwright.ir.facts import Buffer
from tensorwright.ir.graph import SOURCES
from tensorwright.ir.ops import instructions
from tensorwright.passes.rewriting.matcher import describe

ALIGNMENT = 64
DTYPES = ("float32", "int32", "bfloat16", "int8")
"""The element types that a buffer can have."""
KINDS = ("tokens", "rows")


@dataclass
class Place:
    """One place in an arena, and the first and the last index of the nodes that use it."""

    kind: str
    dtype: str
    cols: int
    first: int
    last: int
    offset: int = -1

    @property
    def stride(self) -> int:
        """Returns the bytes per token or row."""
        return align(self.cols * ITEM_BYTES[self.dtype])

    def meets(self, other: Place) -> bool:
        return self.first <= other.last and other.first <= self.last


def align(size: int) -> int:
    return (size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def plan_memory(graph: Graph) -> int:
    """Returns the number of buffers."""
    last_use = find_last_uses(graph)
    buffers: list[Place] = []
    index: dict[Value, int] = {}
    for position, node in enumerate(graph.nodes):
        if node.op in SOURCES:
            continue
        reused = reusable_operand(node, position, last_use)
        for i, value in enumerate(node.outputs):
            last = max(last_use.get(value, position), position)
            if value.is_cache:
                index[value] = -1
            elif reused is not None and reused[0] == i:
                index[value] = index[reused[1]]
                buffers[index[value]].last = last
            else:
                index[value] = len(buffers)
                buffers.append(describe_buffer(value, position, last))
        node.attrs["buffers"] = [index[v] for v in node.outputs]
    arenas = {kind: place([b for b in buffers if b.kind == kind]) for kind in KINDS}
    graph.facts.buffers = [Buffer(b.kind, b.dtype, b.cols, b.stride, b.offset) for b in buffers]
    graph.facts.token_arena_bytes, graph.facts.row_arena_bytes = arenas["tokens"], arenas["rows"]
    graph.facts.logits_buffer = index[graph.outputs[0]]
    return len(buffers)


def find_last_uses(graph: Graph) -> dict[Value, int]:
    """Returns the index of the last node that reads each value; for the graph's outputs, an index past the end."""
    last = {v: i for i, node in enumerate(graph.nodes) for v in node.inputs if v is not None}
    last.update((v, len(graph.nodes)) for v in graph.outputs)
    return last


def reusable_operand(node: Node, position: int, last_use: dict[Value, int]) -> tuple[int, Value] | None:
    """Returns (index of a result, operand) if that result may take the operand's memory; None if no result may."""
    record = instructions()[node.op]
    named = dict(zip((operand.name for operand in record.operands), node.inputs, strict=True))
    results = dict(zip((result.name for result in record.results), enumerate(node.outputs), strict=False))
    for rule in record.in_place:
        if rule.result not in results or named.get(rule.without) is not None:
            continue
        index, out = results[rule.result]
        for value in (named[name] for name in rule.over):
            if value is None or value.node is None or value.node.op in SOURCES or node.inputs.count(value) > 1:
                continue
            if last_use[value] == position and (value.dtype, value.shape) == (out.dtype, out.shape):
                return index, value
    return None


def describe_buffer(value: Value, first: int, last: int) -> Place:
    fits = value.rank == 2 and value.shape[0] in KINDS and isinstance(value.shape[1], int) and value.dtype in DTYPES
    if not fits:
        raise PassError(
            f"plan_memory: a result must be [tokens or rows, columns] of a known type, not {describe(value)}"
        )
    return Place(str(value.shape[0]), value.dtype, int(value.shape[1]), first, last)


def place(buffers: list[Place]) -> int:
    """Gives every buffer the lowest offset that is free while it lives, widest first. Returns the arena's size."""
    placed: list[Place] = []
    for buffer in sorted(buffers, key=lambda b: (-b.stride, b.first)):
        offset = 0
        for other in sorted((b for b in placed if b.meets(buffer)), key=lambda b: b.offset):
            if other.offset - offset >= buffer.stride:
                break
            offset = max(offset, other.offset + other.stride)
        buffer.offset = offset
        placed.append(buffer)
    return max((b.offset + b.stride for b in placed), default=0)
