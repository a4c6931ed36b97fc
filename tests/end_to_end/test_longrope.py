"""longrope end to end. An engine has short or long factors at all lengths, by the longest sequence it may see.

Up to the original length and with an engine of at most that length: transformers' short factors. Past it:
transformers' long factors. Between, a short sequence in a long engine, the two differ by design: the engine keeps the
long factors, so that a request's tokens depend on no other request, nor on how long it will become. There ours equal
transformers with a config whose short factors are the long ones. The bound is that of test_parity_float32.py.
"""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path

import family_mutations as broken
import numpy as np
import pytest
import torch

from support.harness import EngineSteps, load_reference, logits_of, reference_choices, worst
from support.published import publish
from support.tiny_models import make_variant
from tensorwright import LLM, SamplingParams, build
from tensorwright.builder.emit.cpu_plan import emit_cpu_plan
from tensorwright.builder.trace.export import trace
from tensorwright.models.checkpoint import open_checkpoint
from tensorwright.passes.pipeline import run_pipeline
from tensorwright.runtime.commands.cli import main

ORIGINAL, LONGEST = 32, 128
BUILDS = {"short": ORIGINAL, "long": LONGEST}


class Case:
    """A random checkpoint, its engine on either side of the switch, and the checkpoint with long factors only.

    The engines are built from the checkpoint as published: `rope_scaling` with `type`, `rope_theta` beside it.
    """

    def __init__(self, root: Path, variant: str):
        self.root = root
        self.in_transformers = cache(load_reference)
        self.reference = cache(self._reference)
        self.model = make_variant(root / "model", variant, seed=3)
        published = publish(self.model, root / "published")
        for name, longest in BUILDS.items():
            build(published, root / name, dtype="float32", max_seq_len=longest, accuracy="none")
        self.long_only = shutil.copytree(self.model, root / "long-only")
        config = json.loads((self.model / "config.json").read_text())
        config["rope_parameters"]["short_factor"] = config["rope_parameters"]["long_factor"]
        (self.long_only / "config.json").write_text(json.dumps(config))

    def ids(self, length: int) -> list[int]:
        return np.random.default_rng(length).integers(0, 97, length).tolist()

    def distance(self, engine: Path, reference: Path, length: int, chunks: list[int] | None = None) -> float:
        """Of the engine's logits from float64, in units of what is allowed: at most 1 is equal."""
        exact, allowed = self.reference(reference, length)
        return worst(EngineSteps(engine).logits(self.ids(length), chunks), exact) / allowed

    def _reference(self, reference: Path, length: int) -> tuple[np.ndarray, float]:
        """Logits in float64, and how far from them ours may be."""
        exact, theirs = (
            logits_of(self.in_transformers(reference, dtype), self.ids(length), dtype)
            for dtype in (torch.float64, torch.float32)
        )
        return exact, 4 * worst(theirs, exact) + float(np.abs(exact).max()) * float(np.finfo(np.float32).eps)


@pytest.fixture(scope="module", params=["phi3_longrope", "phi3_longrope_partial"])
def case(request, tmp_path_factory):
    return Case(tmp_path_factory.mktemp(request.param), request.param)


@pytest.mark.parametrize("length", [1, 2, 17, ORIGINAL])
def test_short_engine_equals_transformers(case, length):
    assert case.distance(case.root / "short", case.model, length) <= 1


@pytest.mark.parametrize("length", [ORIGINAL + 1, 100, LONGEST])
def test_long_engine_equals_transformers_past_the_original_length(case, length):
    assert case.distance(case.root / "long", case.model, length) <= 1
    assert case.distance(case.root / "long", case.model, length, [7, 40] + [1] * 90) <= 1


@pytest.mark.parametrize("length", [2, 17, ORIGINAL])
def test_long_engine_keeps_long_factors_for_short_sequences(case, length):
    assert case.distance(case.root / "long", case.model, length) > 10
    assert case.distance(case.root / "long", case.long_only, length) <= 1


@pytest.mark.parametrize(("name", "prompts", "answer"), [("short", (1, 5, 12), 20), ("long", (33, 60), 20)])
def test_greedy_tokens_equal_transformers(case, name, prompts, answer):
    reference = case.in_transformers(case.model, torch.float32)
    with LLM(str(case.root / name), kv_cache_memory="64MiB", threads=1) as llm:
        params = SamplingParams(max_tokens=answer, temperature=0.0, ignore_eos=True)
        outputs = llm.generate([{"prompt_token_ids": case.ids(n)} for n in prompts], params)
    for length, output in zip(prompts, outputs, strict=True):
        tokens = output.outputs[0].token_ids
        assert len(tokens) == answer
        assert tokens == reference_choices(reference, case.ids(length), tokens)


@pytest.mark.parametrize("mutation", [broken.swap_long_factors, broken.change_rope_factor, broken.drop_rope_scale])
def test_mutation_turns_red(case, mutation):
    checkpoint = open_checkpoint(case.model)
    traced = trace(checkpoint, dtype="float32", max_seq_len=LONGEST)
    traced.facts.block_size = 32
    graph = run_pipeline(traced).graph
    mutation(graph)
    plan = emit_cpu_plan(graph, checkpoint)
    cpu = case.root / mutation.__name__ / "cpu"
    cpu.mkdir(parents=True)
    (cpu / "plan.bin").write_bytes(plan.data)
    with (cpu / "weights.bin").open("wb") as file:
        plan.weights.stream(file)
    assert case.distance(cpu.parent, case.model, 100) > 10


@pytest.mark.parametrize("name", list(BUILDS))
def test_the_engine_says_which_factors_it_has(case, name, capsys):
    config = json.loads((case.root / name / "config.json").read_text())
    assert config["model"]["longrope"] == {"factors": name, "original_max_position_embeddings": ORIGINAL}
    with pytest.raises(SystemExit) as ended:
        main(["inspect", str(case.root / name)])
    assert ended.value.code in (0, None)
    lines = {tuple(line.split()) for line in capsys.readouterr().out.splitlines()}
    assert {("longrope.factors", name), ("longrope.original_max_position_embeddings", str(ORIGINAL))} <= lines
