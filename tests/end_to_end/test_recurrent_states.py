"""Engines with recurrent layers: no company, chunk, preemption, kept state or fork changes a bit of an answer."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from support.asked_loads import Ask, Solo, asks, check, check_until_preempted
from support.tiny_models import make_variant
from tensorwright import LLM, SamplingParams, build
from tensorwright.runtime.engine.engine_dir import open_engine

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
SIZES = {"vocab_size": 8192, "max_position_embeddings": 2048}
NO_WINDOW = {"recurrent_gemma": {"attention_window_size": 2048}}
"""Variants whose attention has a window, which lets go of blocks, so that these would not run out."""


@pytest.fixture(scope="module", params=VARIANTS)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    model = make_variant(folder / "model", request.param, seed=5, **SIZES, **NO_WINDOW.get(request.param, {}))
    return build(model, folder / "engine", dtype="float32", accuracy="none").path


@pytest.mark.computes(least="avx2")
def test_company_chunks_and_kept_states(engine: Path) -> None:
    load = asks(10, seed=6, longest=100, most_tokens=40)
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
def test_preemption(engine: Path) -> None:
    """Only blocks can run out, and here they do when an answer has begun: each completion has its place for a state."""
    opened = open_engine(engine)
    if not opened.kv_block_bytes:
        pytest.skip("no layer attends, so nothing can run out")
    draw = random.Random(1)
    load = [
        Ask(prompt=tuple(draw.randrange(8192) for _ in range(length)), tokens=40, temperature=0.7, seed=length)
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
