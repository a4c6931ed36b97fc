"""Every family beside llama and qwen2: fp32 engines give transformers' tokens and logits, and the test can fail.

Each family has the mutations that break what is special about it: the same comparison on an engine with that one thing
wrong must turn red. Lengths go past every sliding window. The bound is that of test_parity_float32.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mutations_by_variant import MUTATIONS
from recurrence_mutations import share_state

from support.beams import transformers_beams
from support.harness import EngineSteps, load_reference, logits_of, reference_choices, worst
from support.nested_models import NESTED, make_nested
from support.published import publish
from support.tiny_models import make_variant
from tensorwright import LLM, SamplingParams, build
from tensorwright.builder.emit.cpu_plan import emit_cpu_plan
from tensorwright.ir import Graph
from tensorwright.ir.verify import verify
from tensorwright.models.checkpoint import open_checkpoint
from tensorwright.passes.pipeline import PassReport, run_pipeline

ON_EVERY_PROCESSOR = (
    "deepseek_v3_experts", "falcon", "gemma2", "glm4_moe", "gpt_oss", "granitemoehybrid_experts", "lfm2", "mamba",
    "mixtral", "qwen3_next", "stablelm_head_norms",
)  # fmt: skip
"""Variants that `make test-avx2` and `make test-scalar` compute whole, between them with every operation. That each
kernel gives the same bits on every instruction set is tested by itself (tests/plugins)."""

COMPUTED = [
    pytest.param(variant, marks=pytest.mark.computes if variant in ON_EVERY_PROCESSOR else ()) for variant in MUTATIONS
]
LENGTHS = (1, 2, 16, 17, 33, 100)


class Family:
    """A random checkpoint in bfloat16, its float32 engine, and what transformers computes from it.

    The engine is built from the checkpoint as published, in the words of transformers 4.x; transformers reads its own.
    """

    def __init__(self, root: Path, variant: str):
        self.root = root
        make = make_nested if variant in NESTED else make_variant
        self.model = make(root / "model", variant, seed=3, dtype="bfloat16")
        self.published = publish(self.model, root / "published")
        self.lowered = self._build(root / "engine")

    def _build(self, engine: Path) -> Graph:
        """Builds the engine. Returns the lowered graph as it should be, of which each mutation gets a copy."""
        lowered: list[Graph] = []

        def keep(*arguments: Any, **options: Any) -> PassReport:
            report = run_pipeline(*arguments, **options)
            lowered.append(report.graph.clone())
            return report

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tensorwright.passes.pipeline.run_pipeline", keep)
            build(self.published, engine, dtype="float32", accuracy="none")
        (graph,) = lowered
        return graph

    def ids(self, length: int) -> list[int]:
        """The first tokens of one prompt."""
        return np.random.default_rng(LENGTHS[-1]).integers(0, 97, LENGTHS[-1])[:length].tolist()

    def reference(self, length: int) -> tuple[np.ndarray, float]:
        """Logits in float64, and how far from them ours may be."""
        exact, theirs = (logits[:length] for logits in self._logits)
        rounding = float(np.abs(exact).max()) * float(np.finfo(np.float32).eps)
        return exact, 4 * worst(theirs, exact) + rounding

    @cached_property
    def _logits(self) -> tuple[np.ndarray, np.ndarray]:
        """Those of transformers in float64 and float32, of the longest prompt. A row of logits is a matter of the
        tokens up to it, so these are the rows of shorter prompts too."""
        ids = self.ids(LENGTHS[-1])
        exact = logits_of(load_reference(self.model, torch.float64), ids, torch.float64)
        return exact, logits_of(self.in_transformers, ids, torch.float32)

    @cached_property
    def in_transformers(self) -> torch.nn.Module:
        return load_reference(self.model, torch.float32)

    def broken_engine(self, mutation: Callable[[Graph], None]) -> Path:
        checkpoint, graph = open_checkpoint(self.published), self.lowered.clone()
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


@pytest.mark.parametrize("variant", COMPUTED)
def test_logits_equal_transformers(families, variant):
    family = families(variant)
    steps = EngineSteps(family.root / "engine")
    for length in LENGTHS:
        exact, allowed = family.reference(length)
        assert worst(steps.logits(family.ids(length)), exact) <= allowed
    exact, allowed = family.reference(LENGTHS[-1])
    assert worst(steps.logits(family.ids(LENGTHS[-1]), chunks=[7, 40] + [1] * 60), exact) <= allowed


@pytest.mark.parametrize("variant", ["gemma3", "gpt_neox", "llama_yarn", "phi3"])
def test_every_spelling_of_a_config_gives_the_same_engine(families, variant):
    family = families(variant)
    again = build(family.model, family.root / "again", dtype="float32", accuracy="none").path
    for file in ("cpu/plan.bin", "cpu/weights.bin", "graph.txt"):
        assert (again / file).read_bytes() == (family.root / "engine" / file).read_bytes()


@pytest.mark.parametrize("variant", COMPUTED)
def test_greedy_tokens_equal_transformers(families, variant):
    family = families(variant)
    prompts = [family.ids(n) for n in (1, 5, 40)]
    with LLM(str(family.root / "engine"), kv_cache_memory="64MiB", threads=1) as llm:
        params = SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True)
        outputs = llm.generate([{"prompt_token_ids": p} for p in prompts], params)
    for prompt, output in zip(prompts, outputs, strict=True):
        answer = output.outputs[0].token_ids
        assert len(answer) == 20
        assert answer == reference_choices(family.in_transformers, prompt, answer)


@pytest.mark.parametrize("variant", ON_EVERY_PROCESSOR)
def test_beams_equal_transformers(families, variant):
    family = families(variant)
    prompts, ends = [family.ids(n) for n in (3, 30)], [5, 9, 17, 33, 61]
    params = SamplingParams(n=3, beam_width=4, max_tokens=12, stop_token_ids=ends, ignore_eos=True)
    with LLM(str(family.root / "engine"), kv_cache_memory="64MiB", threads=1) as llm:
        outputs = llm.generate([{"prompt_token_ids": p} for p in prompts], params)
    for prompt, output in zip(prompts, outputs, strict=True):
        expected = transformers_beams(family.in_transformers, prompt, params, ends, use_cache=False)
        assert [c.token_ids for c in output.outputs] == [tokens for tokens, _ in expected]


@pytest.mark.parametrize(("variant", "mutation"), [(v, m) for v, mutations in MUTATIONS.items() for m in mutations])
def test_mutation_turns_red(families, variant, mutation):
    family = families(variant)
    exact, allowed = family.reference(LENGTHS[-1])
    steps = EngineSteps(family.broken_engine(mutation))
    chunks = [60, 40] if mutation is share_state else None
    assert worst(steps.logits(family.ids(LENGTHS[-1]), chunks=chunks), exact) > 10 * allowed
