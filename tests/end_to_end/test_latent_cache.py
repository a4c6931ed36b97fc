"""The cache of latent rows: long contexts and many heads against transformers, any company, and what a token takes."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from support.asked_loads import Ask, Solo, asks, check, check_until_preempted, room
from support.harness import EngineSteps, reference_logits, worst
from support.tiny_models import make_tiny
from tensorwright import LLM, build
from tensorwright.runtime.engine.engine_dir import open_engine

LENGTH = 600
"""More than one split of the positions (TW_ATTENTION_SPLIT)."""
HEADS = {"num_attention_heads": 72, "num_key_value_heads": 72, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4}
"""More heads than the rows of a tile, so that they are cut into parts."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = {**HEADS, "v_head_dim": 2, "kv_lora_rank": 20, "vocab_size": 8192, "max_position_embeddings": 1024}
    return make_tiny(tmp_path_factory.mktemp("latent") / "model", "deepseek_v3", seed=5, **sizes)


@pytest.fixture(scope="module")
def engine(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(model, tmp_path_factory.mktemp("latent") / "engine", dtype="float32", accuracy="none").path


@pytest.mark.computes
def test_long_contexts_equal_transformers(model: Path, engine: Path) -> None:
    ids = np.random.default_rng(1).integers(0, 8000, LENGTH).tolist()
    exact, theirs = (reference_logits(model, ids, dtype) for dtype in (torch.float64, torch.float32))
    allowed = 4 * worst(theirs, exact) + float(np.abs(exact).max()) * float(np.finfo(np.float32).eps)
    assert worst(EngineSteps(engine).logits(ids, chunks=[7, 560, *[1] * 33]), exact) <= allowed


@pytest.mark.computes(least="avx2")
def test_company_chunks_preemption_and_prefixes(engine: Path) -> None:
    load = asks(16, seed=6, longest=100, most_tokens=60)
    draw = random.Random(3)
    load.append(Ask(prompt=tuple(draw.randrange(8192) for _ in range(LENGTH)), tokens=6))
    with LLM(str(engine), threads=1, enable_prefix_caching=False, kv_cache_memory="64MiB", max_batch_size=1) as one:
        solo = Solo(one)
        crowd = {"threads": 2, "max_batch_size": 16, "max_prefill_chunk": 37}
        with LLM(str(engine), kv_cache_memory=room(engine, 24), enable_prefix_caching=False, **crowd) as llm:
            check_until_preempted(llm, solo, load)
        with LLM(str(engine), kv_cache_memory="64MiB", **crowd) as llm:
            check(llm, solo, load)
            check(llm, solo, load)
            assert llm.get_stats()["prefix_hit_tokens"] > 0


def test_a_token_takes_one_row_of_latents_in_each_layer(engine: Path) -> None:
    opened = open_engine(engine)
    assert opened.kv_block_bytes == 2 * (20 + 4) * 4 * opened.config.limits.block_size
