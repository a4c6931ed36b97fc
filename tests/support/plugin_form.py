"""Models in the plugin form beside the graph they were made from: both run the same ragged steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from tolerances import chain_tolerance

from tensorwright.builder.checkpoint_weights import checkpoint_weights
from tensorwright.builder.emit.onnx.plugin_form import MODEL, emit_plugin_form
from tensorwright.builder.emit.onnx.reference_ops import evaluator
from tensorwright.builder.measure.interpreter import narrowed
from tensorwright.engine_format.targets import TARGETS
from tensorwright.ir import Graph
from tensorwright.ir.ops import summing_ops
from tensorwright.ir.ragged import RaggedAdapter, interpret_ragged
from tensorwright.ir.verify import verify
from tensorwright.models.checkpoint import Checkpoint
from tensorwright.passes.lower_weight_only import lower_but_rounded, lower_weight_only
from tensorwright.passes.quantize_kv_cache import quantize_kv_cache
from tensorwright.passes.quantize_weights import quantize_weights
from tensorwright.plugins.paged_attention.cache import UNWRITTEN

BLOCK = 4
SEQUENCES = [np.random.default_rng(i).integers(0, 97, n).tolist() for i, n in enumerate((21, 9, 14))]
STEPS = ((12, 0, 5), (1, 8, 4), (1, 1, 1), (7, 0, 4))
"""A prefill, one beside decode steps, decode alone, and a second chunk: past every window of the tiny models."""


def lower(
    cached: Graph,
    dtype: str,
    quantize: str | None = None,
    kv: str = "auto",
    *,
    block: int = BLOCK,
    target: str = "tensorrt",
) -> Graph:
    """What the emitter takes, of a graph at stage "cached" as insert_kv_cache left it."""
    graph = cached.clone()
    graph.facts.update(dtype=dtype, block_size=block, kv_cache_dtype=kv)
    if quantize is not None:
        graph.facts.quantize = TARGETS[target].parse_quantize(quantize)
    for step in (quantize_weights, quantize_kv_cache, lower_but_rounded if target == "cuda" else lower_weight_only):
        step(graph)
    verify(graph, "cached")
    return graph


class PluginModel:
    """model.onnx of a graph, and the graph; `path` gets the files."""

    def __init__(self, path: Path, checkpoint: Checkpoint, graph: Graph, *, int4: str = "native"):
        self.path, self.checkpoint, self.graph = path, checkpoint, graph
        self.dtype = graph.facts.dtype
        path.mkdir(parents=True, exist_ok=True)
        self.io = emit_plugin_form(graph, checkpoint, path, self.dtype, int4=int4)

    @cached_property
    def expected(self) -> list[np.ndarray]:
        """Logits of every sequence by the interpreter, rounded as the model's types are."""
        return interpret(narrowed(self.graph, self.dtype), self.checkpoint)

    @cached_property
    def unrounded(self) -> list[np.ndarray]:
        """The same weights with activations and cache in float32."""
        graph = self.graph.clone()
        graph.facts.kv_layers = [replace(about, dtype="float32") for about in graph.facts.kv_layers]
        return interpret(graph, self.checkpoint)

    def logits(self, name: str = MODEL) -> list[np.ndarray]:
        """The same by ONNX's reference evaluator, of a model in the same folder."""
        steps = OnnxSteps(self, evaluator(self.path / name))
        pieces = [steps.run(counts) for counts in STEPS]
        return [np.concatenate([piece[i] for piece in pieces]) for i in range(len(SEQUENCES))]

    @property
    def rounds(self) -> bool:
        """Whether activations or what is cached of them lose anything."""
        return self.dtype != "float32" or any(about.dtype for about in self.graph.facts.kv_layers)

    def excess(self, name: str = MODEL) -> float:
        """The error as a multiple of what is allowed; infinite where something is no number.

        In float32 sums may come in another order. With roundings such a sum may fall to the other side of a boundary,
        and all that follows is rounded elsewhere: by less than what rounding costs at all, in the mean square.
        """
        got = self.logits(name)
        if not self.rounds:
            largest = max(float(np.abs(x).max()) for x in self.expected)
            return finite(max(float(np.abs(a - b).max()) for a, b in pairs(got, self.expected))) / self._chain(largest)
        return finite(rms(got, self.expected)) / rms(self.expected, self.unrounded)

    def _chain(self, largest: float) -> float:
        widest = max(d for v in self.graph.values() for d in v.shape if isinstance(d, int))
        return chain_tolerance("float32", widest, sum(n.op in summing_ops() for n in self.graph.nodes), largest)


def pairs(a: list[np.ndarray], b: list[np.ndarray]) -> list[tuple[np.ndarray, np.ndarray]]:
    return list(zip(a, b, strict=True))


def rms(a: list[np.ndarray], b: list[np.ndarray]) -> float:
    return float(np.sqrt(np.mean(np.concatenate([(x - y).ravel() for x, y in pairs(a, b)]) ** 2)))


def finite(x: float) -> float:
    return x if np.isfinite(x) else np.inf


def interpret(graph: Graph, checkpoint: Checkpoint) -> list[np.ndarray]:
    """Logits [len, vocab] float64 of every sequence over STEPS."""
    weights = checkpoint_weights(checkpoint)
    found = interpret_ragged(graph, SEQUENCES, weights, steps=STEPS, block_size=BLOCK)
    return [x.double().numpy() for x in found]


class OnnxSteps:
    """What the executor of an engine does: pages that stay, and block tables of each group's own."""

    def __init__(self, model: PluginModel, session: Any):
        self.model, self.session = model, session
        self.adapter = RaggedAdapter(model.graph, SEQUENCES, block_size=BLOCK)
        sizes: dict[str, int] = {}
        for group in range(len(model.io["groups"])):
            sizes[f"pages.{group}"] = self.adapter.blocks + group
        self.pages = {
            tensor["name"]: unwritten(tensor["dtype"], [sizes.get(d, d) for d in tensor["shape"]])
            for tensor in model.io["inputs"]
            if tensor["name"].split(".")[0] in ("k_pages", "v_pages", "k_scales", "v_scales")
        }

    def run(self, counts: Sequence[int]) -> list[np.ndarray]:
        """Logits [counts[i], vocab] float64 of every sequence."""
        inputs = self._metadata(counts)
        names = [tensor["name"] for tensor in self.model.io["outputs"]]
        results = dict(zip(names, self.session.run(None, {**inputs, **self.pages}), strict=True))
        self.pages = {name: results[name.replace(".", "_out.")] for name in self.pages}
        self.adapter.done = [d + n for d, n in zip(self.adapter.done, counts, strict=True)]
        assert results["logits"].dtype == np.float32
        return np.split(results["logits"].astype(np.float64), np.cumsum(counts)[:-1])

    def _metadata(self, counts: Sequence[int]) -> dict[str, np.ndarray]:
        return step_metadata(self.adapter, counts, len(self.model.io["groups"]))


def step_metadata(adapter: RaggedAdapter, counts: Sequence[int], groups: int) -> dict[str, np.ndarray]:
    """What an executor makes of a step: with slots and block tables for each cache group."""
    given = {name: np.asarray(x) for name, x in adapter.inputs(counts).items() if "kv_cache" not in name}
    step = ("token_ids", "positions", "seq_starts", "context_lens", "logit_rows")
    present = [i for i, n in enumerate(counts) if n]
    spans = [range(adapter.done[i], adapter.done[i] + counts[i]) for i in present]
    found = {name: given.get(name, np.zeros(0, np.int32)) for name in step}
    found |= {name: given[name] for name in ("state_slots",) if name in given}
    found["positions"] = np.array([p for span in spans for p in span], np.int32)
    tables, block = adapter.tables[present], adapter.block_size
    for group in range(groups):
        # Every group has pages of its own, in another order.
        own = np.where(tables < adapter.blocks, (adapter.blocks - 1 - tables) + group, -1)
        own = own if group % 2 else np.where(tables < adapter.blocks, tables, -1)
        found[f"block_tables.{group}"] = own.astype(np.int32)
        slots = [own[i, p // block] * block + p % block for i, span in enumerate(spans) for p in span]
        found[f"slots.{group}"] = np.array(slots, np.int32)
    return found


def unwritten(dtype: str, shape: list[int]) -> np.ndarray:
    """Pages nobody may read."""
    if dtype == "int8":
        return np.full(shape, UNWRITTEN["int8"], np.int8)
    return np.full(shape, np.nan, ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
