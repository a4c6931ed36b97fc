"""Every family beside llama and qwen2: fp32 engines give transformers' tokens and logits, and the test can fail.

Each family has the mutations that break what is special about it: the same comparison on an engine with that one thing
wrong must turn red. Lengths go past every sliding window. The bound is that of test_parity_float32.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import chosen_mutations as chosen
import family_mutations as broken
import numpy as np
import pytest
import torch

from support.harness import EngineSteps, load_reference, reference_choices, reference_logits, worst
from support.tiny_models import make_variant
from tensorwright import LLM, SamplingParams, build
from tensorwright.builder.emit.cpu_plan import emit_cpu_plan
from tensorwright.builder.ir import Graph
from tensorwright.builder.ir.verify import verify
from tensorwright.builder.trace import trace
from tensorwright.models.checkpoint import open_checkpoint
from tensorwright.passes.pipeline import run_pipeline

FAMILIES: dict[str, tuple[Callable[[Graph], None], ...]] = {
    "mistral": (broken.drop_window, broken.widen_window),
    "qwen3": (broken.flatten_query_norm, broken.flatten_key_norm),
    "olmo2": (broken.flatten_query_norm, broken.flatten_key_norm, broken.norm_heads_apart),
    "granite": (broken.scale_embedding, broken.change_numbers),
    "phi3": (broken.drop_window, broken.shift_fused_rows, broken.swap_gate_and_up),
    "gemma2": (
        broken.drop_window,
        broken.swap_windows,
        broken.drop_attention_cap,
        broken.change_numbers,
        broken.scale_embedding,
        broken.drop_weight_offset,
        broken.use_exact_gelu,
    ),
    "cohere": (chosen.keep_query_pairs, chosen.keep_key_pairs, chosen.keep_mean, broken.change_numbers),
    "ernie4_5": (chosen.keep_query_pairs, chosen.keep_key_pairs),
    "glm": (chosen.keep_query_pairs, chosen.keep_query_bias_pairs, chosen.keep_key_pairs, broken.swap_gate_and_up),
    "nemotron": (chosen.drop_layer_norm_offset, chosen.drop_layer_norm_bias, chosen.forget_square),
    "smollm3": (chosen.turn_every_layer, chosen.turn_no_layer),
}
"""Variant of tiny_models -> what turns its comparison red."""

LENGTHS = (1, 2, 16, 17, 33, 100)


class Family:
    """A random checkpoint, its engine, and what transformers computes from it."""

    def __init__(self, root: Path, variant: str):
        self.root = root
        self.model = make_variant(root / "model", variant, seed=3)
        build(self.model, root / "engine", dtype="float32", accuracy="none")
        self.references: dict[int, tuple[np.ndarray, float]] = {}

    def ids(self, length: int) -> list[int]:
        return np.random.default_rng(length).integers(0, 97, length).tolist()

    def reference(self, length: int) -> tuple[np.ndarray, float]:
        """Logits in float64, and how far from them ours may be."""
        if length not in self.references:
            exact = reference_logits(self.model, self.ids(length), torch.float64)
            theirs = reference_logits(self.model, self.ids(length), torch.float32)
            rounding = float(np.abs(exact).max()) * float(np.finfo(np.float32).eps)
            self.references[length] = exact, 4 * worst(theirs, exact) + rounding
        return self.references[length]

    def broken_engine(self, mutation: Callable[[Graph], None]) -> Path:
        checkpoint = open_checkpoint(self.model)
        traced = trace(checkpoint, dtype="float32", max_seq_len=128)
        traced.facts["block_size"] = 32
        graph = run_pipeline(traced).graph
        mutation(graph)
        verify(graph, "lowered")
        cpu = self.root / mutation.__name__ / "cpu"
        cpu.mkdir(parents=True)
        plan = emit_cpu_plan(graph, checkpoint)
        (cpu / "plan.bin").write_bytes(plan.data)
        with (cpu / "weights.bin").open("wb") as file:
            plan.weights.stream(file)
        return cpu.parent


@pytest.fixture(scope="module")
def families(tmp_path_factory):
    made: dict[str, Family] = {}

    def get(variant: str) -> Family:
        if variant not in made:
            made[variant] = Family(tmp_path_factory.mktemp(variant), variant)
        return made[variant]

    return get


@pytest.mark.parametrize("variant", FAMILIES)
def test_logits_equal_transformers(families, variant):
    family = families(variant)
    steps = EngineSteps(family.root / "engine")
    for length in LENGTHS:
        exact, allowed = family.reference(length)
        assert worst(steps.logits(family.ids(length)), exact) <= allowed
    exact, allowed = family.reference(LENGTHS[-1])
    assert worst(steps.logits(family.ids(LENGTHS[-1]), chunks=[7, 40] + [1] * 60), exact) <= allowed


@pytest.mark.parametrize("variant", FAMILIES)
def test_greedy_tokens_equal_transformers(families, variant):
    family = families(variant)
    reference = load_reference(family.model, torch.float32)
    prompts = [family.ids(n) for n in (1, 5, 40)]
    with LLM(str(family.root / "engine"), kv_cache_memory="64MiB", threads=1) as llm:
        params = SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True)
        outputs = llm.generate([{"prompt_token_ids": p} for p in prompts], params)
    for prompt, output in zip(prompts, outputs, strict=True):
        answer = output.outputs[0].token_ids
        assert len(answer) == 20
        assert answer == reference_choices(reference, prompt, answer)


@pytest.mark.parametrize(("variant", "mutation"), [(v, m) for v, mutations in FAMILIES.items() for m in mutations])
def test_mutation_turns_red(families, variant, mutation):
    family = families(variant)
    exact, allowed = family.reference(LENGTHS[-1])
    steps = EngineSteps(family.broken_engine(mutation))
    assert worst(steps.logits(family.ids(LENGTHS[-1])), exact) > 10 * allowed
