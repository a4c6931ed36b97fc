"""Engines with recurrent layers: no company, chunk, preemption, kept state or fork changes a bit of an answer."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from support.asked_loads import Ask, Solo, asks, check, check_until_preempted
from support.tiny_configs import COMMON
from support.tiny_models import make_variant
from tensorwright import LLM, SamplingParams, build
from tensorwright.runtime.engine.engine_dir import open_engine

VOCABULARY = COMMON["vocab_size"]
VARIANTS = (
    "granitemoehybrid_experts",
    "jamba_experts",
    "kimi_linear",
    "lfm2",
    "mamba2",
    "minimax",
    "qwen3_next",
    "recurrent_gemma",
)
"""One of each kind of state, with attention and experts beside it and without."""
PREEMPTED: dict[str, dict[str, Any]] = {
    "lfm2": {},
    "qwen3_next": {},
    "recurrent_gemma": {"attention_window_size": 2048},
}
"""A convolution, a delta rule and a gated recurrence, each beside attention without a window, which would let go of
blocks, so that these would not run out. A cache that has room for the states of two completions has room for 1,024
positions of each, so the models have more."""


def built(folder: Path, variant: str, **sizes: Any) -> Path:
    model = make_variant(folder / "model", variant, seed=5, **sizes)
    return build(model, folder / "engine", dtype="float32", accuracy="none").path


@pytest.fixture(scope="module", params=VARIANTS)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp(request.param), request.param)


@pytest.mark.computes(least="avx2")
def test_company_chunks_and_kept_states(engine: Path) -> None:
    load = asks(10, seed=6, longest=85, most_tokens=40, vocabulary=VOCABULARY)
    with LLM(str(engine), threads=1, enable_prefix_caching=False, kv_cache_memory="64MiB", max_batch_size=1) as one:
        solo = Solo(one)
        with LLM(str(engine), threads=2, max_batch_size=8, max_prefill_chunk=37, kv_cache_memory="64MiB") as llm:
            check(llm, solo, load)
            check(llm, solo, load)
            stats = llm.get_stats()
            assert stats["prefix_hit_tokens"] > 0
            assert stats["state_snapshot_hits"] > 0
            assert stats["used_state_slots"] == stats["state_snapshots"]


@pytest.mark.computes(least="avx2")
@pytest.mark.parametrize("variant", PREEMPTED)
def test_preemption(tmp_path: Path, variant: str) -> None:
    """Only blocks can run out, and here they do when an answer has begun: each completion has its place for a state.
    What is begun again begins with an empty state, as every request of the test above does in a place that another one
    had."""
    engine = built(tmp_path, variant, max_position_embeddings=2048, **PREEMPTED[variant])
    opened = open_engine(engine)
    draw = random.Random(1)
    load = [
        Ask(prompt=tuple(draw.randrange(VOCABULARY) for _ in range(length)), tokens=40, temperature=0.7, seed=length)
        for length in (1010, 1000, 1015, 1005)
    ]
    memory = 2 * (opened.state_bytes + 1024 // opened.config.limits.block_size * opened.kv_block_bytes)
    options = {"enable_prefix_caching": False, "state_snapshots": 0}
    with LLM(str(engine), threads=1, max_batch_size=1, kv_cache_memory="64MiB", **options) as one:
        solo = Solo(one)
        with LLM(str(engine), threads=2, max_batch_size=2, kv_cache_memory=memory, **options) as llm:
            check_until_preempted(llm, solo, load)


def test_forks_go_on_from_the_state_of_the_prompt(engine: Path) -> None:
    prompt = {"prompt_token_ids": list(range(3, 50))}
    params = SamplingParams(n=3, max_tokens=12, temperature=0.9, seed=4, ignore_eos=True, logprobs=2)
    with LLM(str(engine), threads=1, kv_cache_memory="64MiB", enable_prefix_caching=False) as llm:
        first = llm.generate(prompt, params)
        alone = [
            llm.generate({"prompt_token_ids": [*prompt["prompt_token_ids"], *c.token_ids[:6]]}, SamplingParams(
                max_tokens=1, temperature=0.0, ignore_eos=True, logprobs=2)) for c in first.outputs
        ]  # fmt: skip
    with LLM(str(engine), threads=2, kv_cache_memory="64MiB", max_prefill_chunk=16) as llm:
        assert [bits_of(c) for c in llm.generate(prompt, params).outputs] == [bits_of(c) for c in first.outputs]
    assert len({tuple(c.token_ids) for c in first.outputs}) == 3
    for completion, other in zip(first.outputs, alone, strict=True):
        ours, theirs = completion.logprobs[6], other.outputs[0].logprobs[0]
        shared = set(ours) & set(theirs)
        assert shared
        assert all(ours[token].logprob == theirs[token].logprob for token in shared)


def bits_of(completion: Any) -> list[Any]:
    """Tokens and logprobs as exact values."""
    return [
        (token, {other: logprob.logprob.hex() for other, logprob in table.items()})
        for token, table in zip(completion.token_ids, completion.logprobs, strict=True)
    ]
