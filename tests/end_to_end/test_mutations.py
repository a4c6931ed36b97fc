"""The parity test can fail: with one feature of the graph broken, the same comparison on a real engine turns red."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mutations import MUTATIONS, mutate

from support.harness import EngineSteps, reference_logits, worst
from support.tiny_models import make_variant
from tensorwright.builder.emit.cpu_plan import emit_cpu_plan
from tensorwright.builder.trace.export import trace
from tensorwright.models.checkpoint import open_checkpoint
from tensorwright.passes.pipeline import run_pipeline

CASES = [("qwen2", name) for name in MUTATIONS] + [
    ("llama3_rope", "scale_frequencies"),
    ("llama_biases", "drop_one_bias"),
    ("llama_tied", "untie_head"),
    ("llama_wide_heads", "shift_head_map"),
]


class Lowered:
    """A variant's lowered graph, its reference logits, and what the parity test allows."""

    def __init__(self, root, variant: str):
        self.root = root
        model = make_variant(root / "model", variant, seed=5)
        self.checkpoint = open_checkpoint(model)
        traced = trace(self.checkpoint, dtype="float32", max_seq_len=128)
        traced.facts.block_size = 32
        self.graph = run_pipeline(traced).graph
        self.ids = np.random.default_rng(1).integers(0, 97, 60).tolist()
        self.exact = reference_logits(model, self.ids, torch.float64)
        theirs = reference_logits(model, self.ids, torch.float32)
        self.allowed = 4 * worst(theirs, self.exact) + float(np.abs(self.exact).max()) * float(np.finfo(np.float32).eps)

    def error(self, graph, name: str) -> float:
        """Largest logit error of the engine emitted from `graph`."""
        cpu = self.root / name / "cpu"
        cpu.mkdir(parents=True)
        plan = emit_cpu_plan(graph, self.checkpoint)
        (cpu / "plan.bin").write_bytes(plan.data)
        with (cpu / "weights.bin").open("wb") as file:
            plan.weights.stream(file)
        return worst(EngineSteps(self.root / name, max_tokens=128, blocks=4).logits(self.ids), self.exact)


@pytest.fixture(scope="module")
def lowered(tmp_path_factory):
    made: dict[str, Lowered] = {}

    def get(variant: str) -> Lowered:
        if variant not in made:
            made[variant] = Lowered(tmp_path_factory.mktemp(variant), variant)
        return made[variant]

    return get


@pytest.mark.parametrize("variant", sorted({variant for variant, _ in CASES}))
def test_unbroken_engine_is_green(lowered, variant):
    assert lowered(variant).error(lowered(variant).graph, "unbroken") <= lowered(variant).allowed


@pytest.mark.parametrize(("variant", "mutation"), CASES)
def test_mutation_turns_red(lowered, variant, mutation):
    model = lowered(variant)
    assert model.error(mutate(model.graph, mutation), mutation) > 10 * model.allowed
