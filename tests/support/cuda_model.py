"""Engines of target cuda without a GPU: a step's launches in Triton's interpreter, its products in numpy."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from support.cuda_plan import (
    ABSENT,
    FLOAT,
    INTEGER,
    METADATA,
    METADATA_NAMES,
    PAGES,
    SLOT,
    STATES,
    WEIGHT,
    WORKSPACE,
    Argument,
    Product,
    chosen,
    read_plan,
)
from support.cuda_plan import Launch as PlannedLaunch
from support.plugin_form import SEQUENCES, STEPS, PluginModel, step_metadata
from tensorwright.builder.emit.cuda.emit import PlannedGraph, plan_graph
from tensorwright.builder.emit.cuda.plan_file import to_bytes
from tensorwright.ir import Graph
from tensorwright.ir.ragged import RaggedAdapter
from tensorwright.models.checkpoint import Checkpoint
from tensorwright.passes.rewriting.join_draft_heads import model_of
from tensorwright.plugins.draw_tokens.op import Draw
from tensorwright.plugins.gpu.bundle import CompiledKernel
from tensorwright.plugins.gpu.interpret import Block, Interpreter, Memory
from tensorwright.plugins.gpu.launch import SCRATCH, KernelSpec, Launch, Tensor

MAX_STEP = (64, 64, 8)
"""The most tokens, rows and sequences of the engines of tests."""
WIDTHS: dict[str, dict[str, int]] = {
    "gpt2": {"hidden_size": 64},
    "cohere": {"hidden_size": 64},
    "gpt_neox": {"hidden_size": 64},
    "bloom": {"hidden_size": 96},
    "gemma4_shared": {"head_dim": 16, "global_head_dim": 24},
    "recurrent_gemma": {"num_attention_heads": 2},
    "lfm2": {"num_attention_heads": 2, "num_key_value_heads": 1},
    **{name: {} for name in ("minicpm3", "deepseek_v2_experts", "mamba", "mamba2", "qwen3_next", "kimi_linear")},
}
TYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "int32": np.int32}


def wide_enough(variant: str) -> dict[str, int]:
    """What a tiny model's config needs so that its heads have the 16 columns that kernels take."""
    return WIDTHS.get(variant, {"head_dim": 16})


def uncompiled(spec: KernelSpec, sm: int) -> CompiledKernel:
    """What a plan says of a kernel, without code."""
    parameters = (*(kind for _, kind in spec.signature), SCRATCH, SCRATCH)
    return CompiledKernel(spec.kernel, spec.variant, sm, spec.kernel, spec.num_warps, 0, 0, 0, parameters, b"", "")


def plan_without_code(
    planned: PlannedGraph, sm: int, change: Callable[[CompiledKernel, int], CompiledKernel] | None = None
) -> tuple[bytes, list[KernelSpec]]:
    """The file of a plan whose kernels have no code, and their specifications. change: gives a kernel, with its number,
    what stands for code."""
    planner, instructions = planned.traced(sm)
    specs = list(planner.specs)
    kernels = tuple(uncompiled(spec, sm) for spec in specs)
    if change is not None:
        kernels = tuple(change(kernel, number) for number, kernel in enumerate(kernels))
    return to_bytes(planned.plan(sm, instructions, kernels)), specs


class CudaModel(PluginModel):
    """A plan of a graph after the passes, its weights, and the graph: both run the same ragged steps."""

    def __init__(self, checkpoint: Checkpoint, graph: Graph, interpreter: Interpreter, *, sm: int = 90):
        self.checkpoint, self.graph, self.dtype = checkpoint, graph, graph.facts.dtype
        self.interpreter = interpreter
        self.planned = plan_graph(graph, checkpoint, self.dtype, MAX_STEP)
        data, self.specs = plan_without_code(self.planned, sm)
        self.plan = read_plan(data)
        file = io.BytesIO()
        self.planned.emitter.file.write(file, lambda done, total: None)
        self.weights = file.getvalue()

    def logits(self, name: str = "") -> list[np.ndarray]:
        steps = CudaSteps(self)
        pieces = [steps.run(counts) for counts in STEPS]
        return [np.concatenate([piece[i] for piece in pieces]) for i in range(len(SEQUENCES))]


class CudaSteps:
    """What the runtime does: memory at fixed addresses, pages that stay, and a plan that is evaluated for each step."""

    def __init__(self, model: CudaModel):
        self.model, self.plan = model, model.plan
        self.adapter = self.batch(SEQUENCES)
        self.memory = Memory()
        self.groups = len(self.plan.groups)
        self.blocks = [self.adapter.blocks + group for group in range(self.groups)]
        self._reserve()

    def run(self, counts: Sequence[int]) -> list[np.ndarray]:
        """Logits [counts[i], vocab] float64 of every sequence. The token of each row is drawn greedily, and must be
        right."""
        given = step_metadata(self.adapter, counts, self.groups)
        heads = self.plan.heads
        end = self.plan.draws_end if heads is None else heads.first
        logits = self._run(self.adapter, given, counts, 0, end, self.plan.logits_slot)
        tokens = self._view(Argument(SLOT, self.plan.tokens_slot, 0.0), "int32", len(logits))
        np.testing.assert_array_equal(tokens, logits.argmax(1))
        return np.split(logits.astype(np.float64), np.cumsum(counts)[:-1])

    def batch(self, sequences: Sequence[Sequence[int]]) -> RaggedAdapter:
        """Sequences whose blocks are those of SEQUENCES, if they need as many."""
        graph = self.model.graph if self.plan.heads is None else model_of(self.model.graph)
        return RaggedAdapter(graph, sequences, block_size=self.plan.facts["block_size"])

    def run_heads(self, batch: RaggedAdapter, counts: Sequence[int]) -> list[np.ndarray]:
        """The heads' logits [counts[i], columns] float64 of the next tokens of a batch. Behind each sequence the heads'
        own feature is left, if there is a block."""
        heads, block = self.plan.heads, self.plan.facts["block_size"]
        assert heads is not None
        given = step_metadata(batch, counts, self.groups)
        group = self.plan.layers[heads.feature_layer][0]
        behind = np.full(len(given["logit_rows"]), -1, np.int32)
        for seq, (end, last) in enumerate(zip(given["context_lens"], given["seq_starts"][1:] - 1, strict=True)):
            table = given[f"block_tables.{group}"][seq]
            if end // block < len(table) and table[end // block] >= 0:
                behind[last] = table[end // block] * block + end % block
        given["next_slots"] = behind
        end = len(self.plan.instructions)
        logits = self._run(batch, given, counts, heads.first, end, heads.logits_slot)
        if heads.attend:
            tokens = self._view(Argument(SLOT, heads.tokens_slot, 0.0), "int32", len(logits))
            np.testing.assert_array_equal(tokens, logits.argmax(1))
        return np.split(logits.astype(np.float64), np.cumsum(counts)[:-1])

    def features(self) -> list[np.ndarray]:
        """The features [len, width] float64 that lie in the slots of SEQUENCES."""
        heads = self.plan.heads
        assert heads is not None
        group, (size,) = self.plan.layers[heads.feature_layer]
        place, width = Argument(PAGES, heads.feature_layer * 256, 0.0), heads.feature_width
        count = self.blocks[group] * size // np.dtype(TYPES[self.model.dtype]).itemsize
        table = self._view(place, self.model.dtype, count).reshape(-1, width).astype(np.float64)
        given = step_metadata(self.batch(SEQUENCES), [len(one) for one in SEQUENCES], self.groups)
        return np.split(table[given[f"slots.{group}"]], np.cumsum([len(one) for one in SEQUENCES])[:-1])

    def _run(
        self, batch: RaggedAdapter, given: dict[str, np.ndarray], counts: Sequence[int], begin: int, end: int, slot: int
    ) -> np.ndarray:
        """Runs some instructions of the plan. Returns the rows of a slot of logits."""
        rows = len(given["logit_rows"])
        given["draws"] = np.array([Draw(0.0).fields()] * rows, np.int32)
        given.setdefault("next_slots", np.full(rows, -1, np.int32))
        self._put_metadata(given)
        tokens, seqs = (len(given[name]) for name in ("token_ids", "context_lens"))
        tables = [given[f"block_tables.{group}"].shape[1] for group in range(self.groups)]
        values = [tokens, rows, seqs, *tables, *self.blocks]
        started: list[Launch] = []
        parts = self.plan.instructions[begin:end]
        for work in (one for instruction in parts for one in chosen(self.plan, instruction, values)):
            if isinstance(work, Product):
                self._start(started)
                started = []
                self._multiply(work)
            else:
                started.append(self._launch(work))
        self._start(started)
        batch.done = [d + n for d, n in zip(batch.done, counts, strict=True)]
        columns = self.plan.slots[slot][1] // 4
        return self._view(Argument(SLOT, slot, 0.0), "float32", rows * columns).reshape(rows, columns)

    def _reserve(self) -> None:
        """Makes all memory but metadata; what nobody wrote is NaN or 0xFF."""
        sizes = self.plan.facts["max_step"]
        for number, (kind, row_bytes) in enumerate(self.plan.slots):
            self.memory.empty(f"{SLOT} {number}", (sizes[kind] * row_bytes,), "int8")
        for number, (offset, size) in enumerate(self.plan.weights):
            data = np.frombuffer(self.model.weights, np.int8, size, offset)
            self.memory.put(f"{WEIGHT} {number}", data, "int8")
        for layer, (group, tensors) in enumerate(self.plan.layers):
            for place, block_bytes in enumerate(tensors):
                self.memory.empty(f"{PAGES} {layer * 256 + place}", (self.blocks[group] * block_bytes,), "int8")
        self.memory.empty(f"{STATES} 0", (len(SEQUENCES) * sum(self.plan.states),), "int8")
        self.memory.empty(f"{WORKSPACE} 0", (self.plan.facts["workspace_bytes"],), "int8")

    def _put_metadata(self, given: dict[str, np.ndarray]) -> None:
        names = [*METADATA_NAMES, *(f"slots.{g}" for g in range(self.groups))]
        names += [*(f"block_tables.{g}" for g in range(self.groups)), "draws"]
        names += ["state_slots"] if self.plan.states else []
        names += [] if self.plan.heads is None else ["next_slots"]
        for number, name in enumerate(names):
            self.memory.blocks.pop(f"{METADATA} {number}", None)
            self.memory.put(f"{METADATA} {number}", given[name], "int32")

    def _block(self, arg: Argument) -> Block:
        return self.memory.blocks[f"{arg.kind} {0 if arg.kind == STATES else arg.a}"]

    def _launch(self, launch: PlannedLaunch) -> Launch:
        spec, (x, y, z) = self.model.specs[launch.kernel], launch.grid
        return Launch(spec.kernel, spec.variant, (x, y, z), tuple(self._value(arg) for arg in launch.args))

    def _value(self, arg: Argument) -> Any:
        if arg.kind == FLOAT:
            return arg.b
        if arg.kind == INTEGER:
            return arg.a
        tensor = self._block(arg).tensor
        layers = sum(self.plan.states[: arg.a]) if arg.kind == STATES else 0
        return Tensor(tensor.name, tensor.address + layers + int(arg.b), (), (), "int8")

    def _start(self, launches: list[Launch]) -> None:
        """Runs launches, with the memory that they name alone."""
        if not launches:
            return
        named = {arg.name for launch in launches for arg in launch.args if isinstance(arg, Tensor)}
        part = Memory()
        part.blocks = {name: self.memory.blocks[name] for name in sorted(named)}
        self.model.interpreter.run(self.model.specs, launches, part)

    def _view(self, arg: Argument, dtype: str, count: int) -> np.ndarray:
        start, size = int(arg.b), count * np.dtype(TYPES[dtype]).itemsize
        data: np.ndarray = self._block(arg).data
        return data.reshape(-1).view(np.int8)[start : start + size].view(TYPES[dtype])

    def _multiply(self, p: Product) -> None:
        x, w, bias, c, d = p.args
        count = (p.m - 1) * p.stride + p.n if p.m else 0

        def rows(arg: Argument) -> np.ndarray:
            flat = self._view(arg, p.out_dtype, count)
            return np.lib.stride_tricks.as_strided(flat, (p.m, p.n), (p.stride * flat.itemsize, flat.itemsize))

        left = self._view(x, p.dtype, p.m * p.k).reshape(p.m, p.k).astype(np.float32)
        right = self._view(w, p.dtype, p.n * p.k).reshape(p.n, p.k).astype(np.float32)
        y = left @ right.T
        if bias.kind != ABSENT:
            y = y + self._view(bias, p.out_dtype, p.n).astype(np.float32)
        if c.kind != ABSENT:
            y = y + rows(c).astype(np.float32)
        rows(d)[:] = y.astype(TYPES[p.out_dtype])
