"""Writes the files of an engine of target cuda: a plan for each SM, and one file of weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from tensorwright.builder.emit.cuda.calls import OpCall, address_of, buffers_of
from tensorwright.builder.emit.cuda.emitter import CudaEmitter, page_kinds
from tensorwright.builder.emit.cuda.handlers import HANDLERS, HANDLERS_OF_KINDS, elementwise_tree, wide_logits
from tensorwright.builder.emit.cuda.heads import EmittedHeads, emit_heads, parts_of
from tensorwright.builder.emit.cuda.plan_calls import Planner, workspace_bytes
from tensorwright.builder.emit.cuda.plan_file import Heads, Instruction, KvLayerPages, Plan, slot_kind
from tensorwright.builder.emit.cuda.slots import Slot, assign_slots
from tensorwright.engine_format.dtypes import ITEM_BYTES
from tensorwright.ir.facts import Facts
from tensorwright.ir.graph import Graph, Node, Value
from tensorwright.models.checkpoint import Checkpoint
from tensorwright.plugins.draw_tokens import launch as draw_tokens
from tensorwright.plugins.draw_tokens.op import MAX_VOCABULARY
from tensorwright.plugins.gpu.bundle import CompiledKernel
from tensorwright.plugins.gpu.launch import Tensor


@dataclass(frozen=True)
class PlannedGraph:
    """A graph whose calls, memory and weights are known; what an SM decides is not. slots; slot_of: by buffer. draws:
    the first call that draws tokens, and their slot; None where the host draws them all. heads: those that propose
    tokens."""

    emitter: CudaEmitter
    slots: tuple[Slot, ...]
    slot_of: tuple[int, ...]
    logits_slot: int
    draws: tuple[int, int] | None
    heads: EmittedHeads | None

    @property
    def layers(self) -> tuple[KvLayerPages, ...]:
        """The page tensors of each layer, and behind them those of features."""
        facts, dtype = self.emitter.graph.facts, self.emitter.dtype
        features = () if self.heads is None else (self.heads.pages(dtype, facts.block_size),)
        return (*kv_layers(facts, dtype), *features)

    @property
    def block_bytes(self) -> int:
        """The bytes of one block of the cache over all layers."""
        return sum(sum(layer.block_bytes) for layer in self.layers)

    @property
    def record(self) -> dict[str, Any] | None:
        """The record of quantization. The weights must have been written."""
        return self.emitter.weights.record(self.emitter.graph)

    def traced(self, sm: int) -> tuple[Planner, tuple[Instruction, ...]]:
        """Returns the planner of an SM and its instructions. Raises LoweringError."""
        planner = Planner(self.emitter.expressions, self.slot_of, sm)
        return planner, tuple(planner.instruction(call) for call in self.emitter.calls)

    def plan(self, sm: int, instructions: tuple[Instruction, ...], kernels: tuple[CompiledKernel, ...]) -> Plan:
        """Returns the plan for an SM, from what `traced` gives and the kernels of its planner, compiled."""
        emitter, facts = self.emitter, self.emitter.graph.facts
        windows = {layer.group: (layer.window, layer.chunked) for layer in facts.kv_layers}
        return Plan(
            sm=sm,
            vocab_size=facts.vocab_size,
            max_seq_len=facts.max_seq_len,
            block_size=facts.block_size,
            dtype=emitter.dtype,
            weights_bytes=emitter.file.total_bytes,
            max_step=emitter.max_step,
            workspace_bytes=workspace_bytes(emitter.calls),
            groups=tuple(windows[group] for group in sorted(windows)),
            layers=self.layers,
            slots=tuple((slot_kind(slot.rows), slot.row_bytes) for slot in self.slots),
            weights=emitter.file.places,
            kernels=kernels,
            expressions=tuple(emitter.expressions.items),
            instructions=instructions,
            logits_slot=self.logits_slot,
            states=tuple(layer.bytes for layer in facts.state_layers),
            draws=self.draws,
            heads=self._heads(),
        )

    def _heads(self) -> Heads | None:
        if self.heads is None:
            return None
        at, layer = self.heads, len(self.emitter.graph.facts.kv_layers)
        draws = () if at.draws is None else (at.draws[0], self._slot(at.draws[1]))
        return Heads(at.first_feature, at.first, self._slot(at.logits), layer, at.width, at.attend, *draws)

    def _slot(self, tensor: Tensor) -> int:
        return self.slot_of[address_of(tensor).number]


def plan_graph(graph: Graph, checkpoint: Checkpoint, dtype: str, max_step: tuple[int, int, int]) -> PlannedGraph:
    """Returns the calls of a graph after the passes of target cuda, which may be joined with that of heads. No weight
    is read.

    dtype: the type A. max_step: the most tokens, rows of logits and sequences. Raises LoweringError for an op without a
    kernel, and for heads of a model with recurrent layers.
    """
    emitter = CudaEmitter(graph, checkpoint, dtype, max_step)
    parts = parts_of(graph)

    def run(nodes: list[Node]) -> None:
        emitter.run(nodes, HANDLERS, HANDLERS_OF_KINDS, elementwise_tree)

    def wide(value: Value) -> Tensor:
        return wide_logits(emitter, emitter.tensors[value], value)

    run(parts.model)
    logits = wide(graph.outputs[0])
    first_draw, tokens = len(emitter.calls), _draw_tokens(emitter, logits)
    heads = emit_heads(emitter, parts, run, wide, partial(_draw_tokens, emitter))
    uses = [buffers_of(call) for call in emitter.calls]
    kept = [address_of(each).number for each in (logits, *(() if heads is None else (heads.logits,)))]
    slots, slot_of = assign_slots(emitter.buffers, uses, kept)
    draws = None if tokens is None else (first_draw, slot_of[address_of(tokens).number])
    return PlannedGraph(emitter, slots, slot_of, slot_of[kept[0]], draws, heads)


def _draw_tokens(emitter: CudaEmitter, logits: Tensor) -> Tensor | None:
    """Adds the call that draws tokens from the logits, and returns the tokens; None for more logits than it takes."""
    columns, max_rows = logits.shape[1], emitter.max_step[1]
    if columns > MAX_VOCABULARY:
        return None
    tokens = emitter.make(("rows",), "tokens", "int32")
    attrs = {"columns": columns, "max_rows": max_rows}
    inputs = {"logits": logits, "draws": emitter.metadata("draws")}
    workspace = draw_tokens.workspace_bytes(attrs, {})
    emitter.calls.append(OpCall("draw_tokens", draw_tokens, attrs, inputs, {"tokens": tokens}, workspace))
    return tokens


def kv_layers(facts: Facts, dtype: str) -> tuple[KvLayerPages, ...]:
    """Returns the cache group of each layer, and the bytes of one block of its page tensors."""
    found = []
    for layer in facts.kv_layers:
        vectors = layer.kv_heads * facts.block_size
        sizes = [
            vectors * (layer.head_dim if name.endswith("pages") else 1) * ITEM_BYTES[kind]
            for name, kind in page_kinds(layer, dtype)
        ]
        found.append(KvLayerPages(layer.group, tuple(sizes)))
    return tuple(found)
