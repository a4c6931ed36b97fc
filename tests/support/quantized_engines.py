"""Engines of tiny checkpoints with quantized weights, and the cached graph's interpretation that they must equal."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import numpy as np
from tolerances import chain_tolerance

from support.harness import EngineSteps, worst
from support.tiny_models import make_variant
from tensorwright.builder.checkpoint_weights import checkpoint_weights
from tensorwright.builder.emit.cpu_plan import emit_cpu_plan
from tensorwright.builder.trace.export import trace_for_engine
from tensorwright.engine_format.weight_formats import parse_spec
from tensorwright.ir import Graph
from tensorwright.ir.ragged import interpret_ragged
from tensorwright.models.checkpoint import Checkpoint, open_checkpoint
from tensorwright.passes.pipeline import PassReport, run_pipeline
from tensorwright.plugins.quantized_matmul import quantize
from tensorwright.plugins.quantized_matmul.quantize import Quantized

SEQUENCES = [np.random.default_rng(i).integers(0, 97, 10).tolist() for i in range(8)]


class TinyModel:
    """A variant's checkpoint, traced once."""

    def __init__(self, root: Path, variant: str, *, dtype: str = "float32", **overrides: int):
        self.root = root
        self.checkpoint: Checkpoint = open_checkpoint(make_variant(root / "model", variant, seed=5, **overrides))
        self.traced: Graph = trace_for_engine(self.checkpoint, dtype=dtype, max_seq_len=128)
        self.traced.facts.block_size = 32
        self._made: dict[str, QuantizedEngine] = {}

    def quantized(self, spec: str) -> QuantizedEngine:
        if spec not in self._made:
            graph = self.traced.clone()
            graph.facts.quantize = parse_spec(spec)
            name = spec.translate(str.maketrans(":,=", "---"))
            self._made[spec] = QuantizedEngine(self.root / name, self.checkpoint, run_pipeline(graph))
        return self._made[spec]


class QuantizedEngine:
    """The cpu files of a lowered graph, and the oracle: numpy quantizes, packs nothing, and sums in its own order."""

    def __init__(self, path: Path, checkpoint: Checkpoint, report: PassReport):
        self.path, self.report, self.checkpoint = path, report, checkpoint
        self.plan = emit_cpu_plan(report.graph, checkpoint)
        (path / "cpu").mkdir(parents=True)
        (path / "cpu/plan.bin").write_bytes(self.plan.data)
        with (path / "cpu/weights.bin").open("wb") as file:
            self.plan.weights.stream(file)

    @cached_property
    def oracle(self) -> list[np.ndarray]:
        """Logits [10, vocab] of each sequence."""
        weights = checkpoint_weights(self.checkpoint)
        return [x.double().numpy() for x in interpret_ragged(self.report.cached_graph, SEQUENCES, weights)]

    def errors(self, path: Path | None = None) -> list[float]:
        """Of each sequence, the largest error of a logit of the engine's files (or of others at `path`)."""
        steps = EngineSteps(path or self.path, max_tokens=128, blocks=4)
        return [worst(steps.logits(ids), exact) for ids, exact in zip(SEQUENCES, self.oracle, strict=True)]

    def agrees(self, path: Path | None = None) -> bool:
        """Most sequences within reordered float32 sums, and all within the rounding of activations.

        An activation halfway between two of its steps may go to either after sums in another order. A few in a hundred
        thousand do, and what follows in that sequence is rounded elsewhere too: by a step, 1/127 of the largest value,
        in each of the products after each other, whose signs are random.
        """
        errors = self.errors(path)
        largest = max(float(np.abs(exact).max()) for exact in self.oracle)
        widest = max(int(plan.k) for plan in self.plan.weights.plans if plan.n > 1)
        close = chain_tolerance("float32", widest, len(self.report.graph.nodes), largest)
        graph = self.report.graph
        products = len(list(graph.find("quantized_matmul"))) + 2 * len(list(graph.find("quantized_experts")))
        return float(np.median(errors)) <= close and max(errors) <= largest / 127 * math.sqrt(products)

    def changed(self, name: str, change: Callable[[Quantized], None]) -> Path:
        """Files in which the matrix whose name holds `name` was unpacked, changed and packed again."""
        data = bytearray((self.path / "cpu/weights.bin").read_bytes())
        (plan,) = [plan for plan in self.plan.weights.plans if plan.format is not None and name in plan.name]
        fmt = plan.format
        assert fmt is not None
        stored = np.frombuffer(bytes(data[plan.offset : plan.offset + plan.bytes]), np.uint8)
        values = quantize.unpack(stored, fmt, plan.n, plan.k)
        assert quantize.pack(values, fmt, plan.k).tobytes() == stored.tobytes()
        change(values)
        data[plan.offset : plan.offset + plan.bytes] = quantize.pack(values, fmt, plan.k).tobytes()
        path = self.path / f"changed-{change.__name__}"
        (path / "cpu").mkdir(parents=True)
        (path / "cpu/plan.bin").write_bytes(self.plan.data)
        (path / "cpu/weights.bin").write_bytes(data)
        return path
