"""An engine with a KV budget: a sequence holds few blocks however long it gets, and its bits depend on its own tokens
alone. Gemma 2 has a window in every other layer besides, and Qwen 3 Next states of recurrent layers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.harness import load_reference
from support.ragged import Ragged
from support.tiny_models import make_variant
from tensorwright import LLM, SamplingParams, build
from tensorwright.builder.rebuild import rebuild
from tensorwright.engine_format.engine_config import EngineConfig
from tensorwright.engine_format.file_names import CONFIG, CPU_PLAN, CPU_WEIGHTS
from tensorwright.engine_format.kv_cache import DECISION_INTERVAL
from tensorwright.errors import InvalidOptionError
from tensorwright.runtime import _runtime
from tensorwright.runtime.requests.outputs import CompletionOutput

BUDGET = 160
"""Five blocks: one with sink tokens, two recent ones, and two by their scores."""
HELD = (BUDGET + DECISION_INTERVAL) // 32


def bits(completion: CompletionOutput) -> Any:
    return completion.token_ids, [
        {t: lp.logprob.hex() for t, lp in table.items()} for table in completion.logprobs or []
    ]


def prompt(seed: int, length: int) -> dict[str, list[int]]:
    return {"prompt_token_ids": [(seed * i * i + 5 * i) % 97 for i in range(length)]}


def built(folder: Path, name: str) -> Path:
    make_variant(folder / "model", name, seed=3, max_position_embeddings=768)
    build(folder / "model", folder / "engine", dtype="float32", accuracy="none", kv_budget=BUDGET, keep_weights=True)
    return folder / "engine"


@pytest.fixture(scope="module", params=["llama", "gemma2", "qwen3_next"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("plain"), "llama")


def test_rows_see_what_the_cache_keeps(llama: Path) -> None:
    """Against transformers, with a mask that hides the blocks that are gone. tests/runtime/core/test_kept_blocks.py has
    which these must be."""
    ids = prompt(1, 700)["prompt_token_ids"]
    run = Ragged(_runtime.CpuExecutor(str(llama / CPU_PLAN), str(llama / CPU_WEIGHTS), 1, "map"), 40)
    seen = np.tril(np.ones((len(ids), len(ids)), bool))
    rows = []
    for begin in range(0, len(ids), DECISION_INTERVAL):
        end = begin + DECISION_INTERVAL
        rows.append(run.step([("a", ids[begin:end])]))
        gone = np.flatnonzero(run.executor.gone_blocks(0, run.state_slots["a"]))
        if end <= len(ids):
            assert len(gone) == max(0, end // 32 - BUDGET // 32)
            seen[end:, np.isin(np.arange(len(ids)) // 32, gone)] = False
    reference = load_reference(llama.parent / "model", torch.float32)

    def logits(shown: np.ndarray) -> np.ndarray:
        mask = torch.where(torch.from_numpy(shown), 0.0, torch.finfo(torch.float32).min)[None, None]
        with torch.inference_mode():
            return reference(torch.tensor([ids]), attention_mask=mask).logits[0].numpy()

    expected = logits(seen)
    off = np.abs(np.concatenate(rows) - expected).max()
    assert off < 1e-5 * np.abs(expected).max()
    seen[640:, np.flatnonzero(seen[-1])[:96]] = False  # the first block, and two that stayed for their scores
    assert np.abs(logits(seen)[640:] - expected[640:]).max() > 10 * off, "what stays must matter"


def test_a_long_request_holds_few_blocks(llama: Path) -> None:
    greedy = SamplingParams(temperature=0, max_tokens=440, ignore_eos=True, detokenize=False)
    with LLM(llama, kv_cache_memory="16MiB", max_batch_size=1, threads=1) as roomy:
        answer = roomy.generate(prompt(1, 300), greedy).outputs[0].token_ids
        each = roomy.engine.kv_block_bytes
        (group,) = roomy.get_stats()["groups"]
        assert group["kv_budget"] == BUDGET
        assert group["total_blocks"] == HELD, "a full batch holds no more"
        assert (roomy.generate(prompt(1, 300), greedy).outputs[0].token_ids) == answer
    with LLM(llama, kv_cache_memory=(HELD + 1) * each, max_batch_size=1, threads=2, state_snapshots=0) as llm:
        assert llm.generate(prompt(1, 300), greedy).outputs[0].token_ids == answer
        stats = llm.get_stats()
        assert stats["preemptions"] == 0
        assert stats["groups"][0]["used_blocks"] == 0


@pytest.mark.computes(least="avx2")
def test_company_prefixes_and_forks_change_no_bit(engine: Path) -> None:
    params = [
        SamplingParams(n=1 + i % 2, seed=i, max_tokens=40 + 21 * (i % 4), ignore_eos=True, logprobs=1, detokenize=False)
        for i in range(8)
    ]
    prompts = [prompt(2 + i % 2, 250 + 83 * (i % 4)) for i in range(8)]
    options = {"enable_prefix_caching": False, "kv_cache_memory": "64MiB"}
    with LLM(engine, threads=1, max_batch_size=2, **options) as one:
        alone = [[bits(c) for c in one.generate(p, param).outputs] for p, param in zip(prompts, params, strict=True)]
    with LLM(engine, threads=2, kv_cache_memory="64MiB", max_batch_size=4, max_num_tokens=75) as llm:
        for _ in range(2):
            outputs = llm.generate(prompts, params)
            assert [[bits(c) for c in output.outputs] for output in outputs] == alone
        stats = llm.get_stats()
        assert stats["prefix_hit_tokens"] > 0
        assert stats["state_snapshot_hits"] > 0
    for group in stats["groups"]:
        assert group["used_blocks"] == 0
        assert group["free_blocks"] + group["cached_blocks"] == group["total_blocks"]


def test_beams_follow_with_their_blocks(llama: Path) -> None:
    asked = SamplingParams(n=2, beam_width=3, max_tokens=150, ignore_eos=True, detokenize=False)
    found = []
    for more in ({"threads": 1}, {"threads": 2, "max_num_tokens": 40}):
        with LLM(llama, kv_cache_memory="16MiB", max_batch_size=4, **more) as llm:
            found.append([c.token_ids for c in llm.generate(prompt(4, 200), asked).outputs])
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"speculative": "ngram"}, "was built with a kv_budget, whose scores of blocks cannot be taken back"),
        ({"jump_forward": True}, "was built with a kv_budget"),
        ({"prefix_cache_memory": "1MiB"}, "whose scores of blocks are not kept so"),
        ({"pinned_prefix_memory": "1MiB"}, "whose scores of blocks are not pinned"),
        ({"cache_events": 100}, "whose scores of blocks are not told"),
        ({"kv_budget": 192}, "is an engine with a KV budget of 160"),
    ],
)
def test_what_does_not_go_with_a_budget_is_refused(llama: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        LLM(llama, kv_cache_memory="16MiB", **options)


def test_a_rebuild_gives_all_positions_back(llama: Path, tmp_path: Path) -> None:
    plain = build(llama.parent / "model", tmp_path / "plain", dtype="float32", accuracy="none").path
    config = EngineConfig.from_dict(json.loads((llama / CONFIG).read_text()), llama / CONFIG)
    again = rebuild(llama, config, tmp_path / "again", kv_budget=0, keep_weights=False).path
    assert (again / "cpu/plan.bin").read_bytes() == (plain / "cpu/plan.bin").read_bytes()
    window = rebuild(llama, config, tmp_path / "window", attention_window=64, keep_weights=False)
    assert "kv_budget" not in window.config["build_options"]


def test_the_record_is_of_sequences_that_forget(llama: Path, tmp_path: Path) -> None:
    """Longer than other builds measure, and across decisions. What that costs a random model says nothing."""
    out = tmp_path / "out"
    result = build(llama.parent / "model", out, dtype="float32", kv_budget=BUDGET, accuracy_tokens=600)
    assert (result.config["accuracy"]["windows"], result.config["accuracy"]["tokens"]) == (1, 600)
    assert result.config["build_options"]["kv_budget"] == BUDGET
