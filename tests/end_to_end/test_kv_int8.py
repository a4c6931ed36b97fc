"""Engines with a KV cache of integers: their logits are the interpreted cached graph's, and little less the model's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from support.harness import EngineSteps, worst
from support.tiny_models import make_variant
from tensorwright import LLM, SamplingParams, build
from tensorwright.builder.checkpoint_weights import checkpoint_weights
from tensorwright.builder.emit.cpu_plan import emit_cpu_plan
from tensorwright.builder.emit.engine_files import kv_block_bytes
from tensorwright.builder.trace.export import trace
from tensorwright.engine_format.dtypes import NUMBERS
from tensorwright.errors import InvalidOptionError
from tensorwright.ir.graph import Graph
from tensorwright.ir.ragged import interpret_ragged
from tensorwright.models.checkpoint import open_checkpoint
from tensorwright.passes.pipeline import PassReport, run_pipeline
from tensorwright.runtime import _testing
from tensorwright.runtime.engine.engine_dir import open_engine

INT8 = ["llama", "llama_mqa", "gpt2", "gemma2", "flint", "mistral", "gpt_neox", "falcon_groups"]
"""Grouped heads, one KV head of 10 dimensions, no rotation, soft caps and windows, sinks, windows, partial rotation."""
PAIRS = [*((variant, "int8") for variant in INT8), ("llama", "int4"), ("flint", "int4")]
OVERRIDES = {"flint": {"num_experts": 1}}
TOKENS = 70


class Made:
    """A variant's graphs with and without a cache of integers, and the logits that interpreting them gives."""

    def __init__(self, root: Path, variant: str, kv: str):
        self.root, self.kv = root, kv
        self.checkpoint = open_checkpoint(make_variant(root / "model", variant, seed=5, **OVERRIDES.get(variant, {})))
        vocabulary = self.checkpoint.config["vocab_size"]
        self.ids = np.random.default_rng(1).integers(0, min(vocabulary, 97), TOKENS).tolist()
        self.reports = {kv: self.rewrite(kv) for kv in ("auto", kv)}
        self.expected = {kv: self.interpret(report.cached_graph) for kv, report in self.reports.items()}

    def rewrite(self, kv: str) -> PassReport:
        traced = trace(self.checkpoint, dtype="float32", max_seq_len=128)
        traced.facts.update(block_size=32, kv_cache_dtype=kv)
        return run_pipeline(traced)

    def interpret(self, graph: Graph) -> np.ndarray:
        (logits,) = interpret_ragged(graph, [self.ids], checkpoint_weights(self.checkpoint), block_size=32)
        return logits.double().numpy()

    def engine(self, graph: Graph, name: str) -> EngineSteps:
        cpu = self.root / name / "cpu"
        cpu.mkdir(parents=True)
        plan = emit_cpu_plan(graph, self.checkpoint)
        (cpu / "plan.bin").write_bytes(plan.data)
        with (cpu / "weights.bin").open("wb") as file:
            plan.weights.stream(file)
        return EngineSteps(self.root / name, max_tokens=128, blocks=8)


@pytest.fixture(scope="module", params=PAIRS, ids="-".join)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp(request.param[0]), *request.param)


def test_logits_are_the_cached_graphs(made: Made) -> None:
    """float32 noise may move an element of K or V over the edge between two integers: one step of a few elements.

    What rounding does to all of them together is the scale of that; one part in ten of it is allowed.
    """
    engine = made.engine(made.reports[made.kv].graph, made.kv)
    logits = engine.logits(made.ids)
    rounding = worst(made.expected[made.kv], made.expected["auto"])
    assert worst(logits, made.expected[made.kv]) <= rounding / 10
    # Chunks, a decode step and other blocks: the same bits.
    for chunks, block in (([1, 30, 2, 36, 1], 0), ([64, 6], 3)):
        np.testing.assert_array_equal(engine.logits(made.ids, chunks, first_block=block), logits)


def test_an_engine_that_does_not_round_is_red(made: Made) -> None:
    """The comparison above can fail: without the pass, or with one layer left out, the error is the rounding's own."""
    rounding = worst(made.expected[made.kv], made.expected["auto"])
    whole = made.engine(made.reports["auto"].graph, "whole").logits(made.ids)
    assert worst(whole, made.expected[made.kv]) > rounding / 2
    partly = made.reports[made.kv].graph.clone()
    *others, last = partly.facts.kv_layers
    partly.facts.kv_layers = [*others, replace(last, dtype="")]
    assert worst(made.engine(partly, "partly").logits(made.ids), made.expected[made.kv]) > rounding / 10


def test_a_block_takes_what_the_layout_says(made: Made) -> None:
    facts_of_graph = made.reports[made.kv].graph.facts
    layers = facts_of_graph.kv_layers
    sizes = [_testing.kv_block_bytes(NUMBERS[made.kv], layer.kv_heads, layer.head_dim, 32) for layer in layers]
    facts = made.engine(made.reports[made.kv].graph, "sizes").executor.facts()
    assert sum(facts["block_bytes"]) == sum(sizes) == kv_block_bytes(facts_of_graph)


def test_bfloat16_with_biased_heads_equals_the_lowered_graph(tmp_path: Path) -> None:
    """q of bfloat16, and K and V rounded to int8 from float32, never through bfloat16."""
    checkpoint = open_checkpoint(make_variant(tmp_path / "model", "qwen2", seed=5))
    traced = trace(checkpoint, dtype="bfloat16", max_seq_len=128)
    traced.facts.update(block_size=32, kv_cache_dtype="int8")
    graph = run_pipeline(traced).graph
    (tmp_path / "engine" / "cpu").mkdir(parents=True)
    plan = emit_cpu_plan(graph, checkpoint)
    (tmp_path / "engine" / "cpu" / "plan.bin").write_bytes(plan.data)
    with (tmp_path / "engine" / "cpu" / "weights.bin").open("wb") as file:
        plan.weights.stream(file)
    ids = np.random.default_rng(1).integers(0, 97, 40).tolist()
    (expected,) = interpret_ragged(graph, [ids], checkpoint_weights(checkpoint), block_size=32)
    logits = EngineSteps(tmp_path / "engine", max_tokens=128, blocks=8).logits(ids)
    # Activations of bfloat16 round at other places when a sum's order differs: a few of their spacings.
    assert worst(logits, expected.double().numpy()) <= 4 * 2.0**-8 * float(expected.abs().max())


@pytest.mark.parametrize("name", ["pico_engine_int8_kv", "pico_engine_int4_kv"])
def test_forks_copy_scales_too(name: str, request: pytest.FixtureRequest) -> None:
    """Completions of one prompt share its last block until they write to it: then it is copied, scales and all."""
    prompt = {"prompt_token_ids": list(range(40, 85))}
    with LLM(request.getfixturevalue(name), threads=2, kv_cache_memory="8MiB") as llm:
        options = {"temperature": 0, "max_tokens": 24, "ignore_eos": True, "logprobs": 1}
        alone = llm.generate(prompt, SamplingParams(**options)).outputs[0]
        many = llm.generate(prompt, SamplingParams(**options, n=3)).outputs
        assert len(many) == 3
        for completion in many:
            assert completion.token_ids == alone.token_ids
            assert completion.logprobs == alone.logprobs


def test_pico_loses_next_to_nothing(pico_model: Path, tmp_path: Path) -> None:
    result = build(pico_model, tmp_path / "int8", kv_cache_dtype="int8", accuracy="quick")
    plain = build(pico_model, tmp_path / "auto", accuracy="quick")
    ours, theirs = result.config["accuracy"], plain.config["accuracy"]
    assert ours["perplexity_engine"] <= 1.005 * theirs["perplexity_engine"]
    assert ours["kl_divergence"] < 5e-4
    assert ours["kl_divergence"] > theirs["kl_divergence"]
    assert ours["top1_agreement"] > 0.98
    assert result.config["build_options"]["kv_cache_dtype"] == "int8"
    assert result.config["passes"]["quantize_kv_cache"] == result.config["model"]["layers"]
    small, large = (open_engine(tmp_path / name).kv_block_bytes for name in ("int8", "auto"))
    # 32 dimensions or more of one byte and 4 / head_dim of a scale, against two bytes.
    head_dim = result.config["model"]["head_dim"]
    assert small / large == pytest.approx((1 + 4 / head_dim) / 2)


def test_int4_costs_pico_about_a_percent(pico_engine_int4_kv: Path) -> None:
    config = open_engine(pico_engine_int4_kv).config
    accuracy = config.accuracy
    assert accuracy is not None
    assert accuracy.perplexity_engine <= 1.02 * accuracy.perplexity_reference
    assert 0.002 < accuracy.kl_divergence < 0.02
    assert accuracy.top1_agreement > 0.9
    assert config.kv_cache_dtype == "int4"
    # Half a byte and a word for 64 dimensions, against two bytes.
    assert open_engine(pico_engine_int4_kv).kv_block_bytes == config.model.layers * 32 * 2 * 2 * (32 + 4)


def test_a_type_that_does_not_exist_is_refused(pico_model: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidOptionError, match="kv_cache_dtype must be one of auto, int8, int4, fp8, not 'fp16'"):
        build(pico_model, tmp_path / "engine", kv_cache_dtype="fp16")
    assert not (tmp_path / "engine").exists()
