"""prompt_logprobs: those of the log_softmax of transformers, and the same bits however prompts are cut, in any company.

Both terms of a log-softmax move by at most the largest error of the logits, so the bound is twice that of
test_parity_float32.py, and a rank may differ only among tokens that are closer than that.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.harness import reference_logits, worst
from support.tiny_models import make_variant
from support.waiting import PATIENCE, wait_until
from tensorwright import LLM, SamplingParams, build
from tensorwright.errors import InvalidRequestError
from tensorwright.runtime.requests.outputs import RequestOutput

VOCAB = 101
LENGTHS = (1, 2, 31, 32, 33, 100)
BLOCK = 32


@pytest.fixture(scope="module", params=["llama", "mistral"])  # mistral: a sliding window of 16
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A random checkpoint and its engine."""
    root = tmp_path_factory.mktemp(request.param)
    model = make_variant(root / "model", request.param, seed=3)
    build(model, root / "engine", dtype="float32", accuracy="none")
    return model, root / "engine"


def prompt_of(length: int) -> dict[str, list[int]]:
    return {"prompt_token_ids": np.random.default_rng(length).integers(0, VOCAB, length).tolist()}


def bits(output: RequestOutput) -> list[Any]:
    """Its prompt's logprobs and its tokens as exact values."""
    tables = output.prompt_logprobs or []
    scores = [
        table and [(token, entry.logprob.hex(), entry.rank) for token, entry in table.items()] for table in tables
    ]
    return [scores, output.outputs[0].token_ids]


@pytest.mark.parametrize("length", LENGTHS)
def test_values_are_those_of_transformers(pair: tuple[Path, Path], length: int) -> None:
    model, engine = pair
    prompt = prompt_of(length)
    ids = prompt["prompt_token_ids"]
    exact, theirs = (reference_logits(model, ids, dtype) for dtype in (torch.float64, torch.float32))
    allowed = 2 * (4 * worst(theirs, exact) + float(np.abs(exact).max()) * float(np.finfo(np.float32).eps))
    expected = torch.from_numpy(exact).log_softmax(-1).numpy()
    with LLM(engine, kv_cache_memory="4MiB", threads=1) as llm:
        params = SamplingParams(max_tokens=1, prompt_logprobs=5, temperature=2.0, logit_bias={7: 50.0})
        tables = llm.generate(prompt, params).prompt_logprobs
    assert tables is not None
    assert tables[0] is None
    assert len(tables) == length
    for token, table, row in zip(ids[1:], tables[1:], expected, strict=False):
        assert table is not None
        assert next(iter(table)) == token
        assert {entry.rank for entry in table.values()} >= {1, 2, 3, 4, 5}
        assert len(table) == (5 if table[token].rank <= 5 else 6)
        for candidate, entry in table.items():
            assert abs(entry.logprob - row[candidate]) <= allowed
            least, most = (int((row > row[candidate] + slack).sum()) for slack in (allowed, -allowed))
            assert least + 1 <= entry.rank <= max(most, 1)


def load(seed: int, most_tokens: int) -> list[tuple[dict[str, list[int]], SamplingParams]]:
    """Prompts over a shared stem; two of three want their logprobs."""
    rng = random.Random(seed)
    stem = [rng.randrange(VOCAB) for _ in range(2 * BLOCK)]
    asks = []
    for i in range(18):
        ids = stem[: rng.choice([0, BLOCK, 2 * BLOCK])] + [rng.randrange(VOCAB) for _ in range(rng.randrange(1, 30))]
        most = min(rng.randrange(1, most_tokens), 128 - len(ids))
        params = SamplingParams(
            max_tokens=most, temperature=rng.choice([0.0, 1.0]), seed=i, ignore_eos=True,
            prompt_logprobs=rng.choice([None, 0, 3]), priority=rng.choice([0, 0, 1]),
        )  # fmt: skip
        asks.append(({"prompt_token_ids": ids}, params))
    return asks


def answers(engine: Path, asks: list[tuple[dict[str, list[int]], SamplingParams]], **options: Any) -> Any:
    """What each is told among the others, and the counters."""
    with LLM(engine, **options) as llm:
        outputs = [handle.result(PATIENCE) for handle in [llm.generate_async(*ask) for ask in asks]]
        assert all(o.metrics.cached_tokens == 0 for o in outputs if o.prompt_logprobs is not None)
        return [bits(output) for output in outputs], llm.get_stats()


def alone(engine: Path, asks: list[tuple[dict[str, list[int]], SamplingParams]]) -> list[Any]:
    """One at a time, each prompt in one step."""
    options = {"kv_cache_memory": "1MiB", "threads": 1, "max_batch_size": 1, "max_prompt_logprob_rows": 512}
    with LLM(engine, enable_prefix_caching=False, **options) as llm:  # type: ignore[arg-type]
        return [bits(llm.generate(*ask)) for ask in asks]


def test_any_chunks_and_company_give_the_same_bits(pair: tuple[Path, Path]) -> None:
    asks = load(1, 12)
    expected = alone(pair[1], asks)
    assert sum(bool(scores) for scores, _ in expected) > 6
    for chunk, rows, threads in ((None, 1, 1), (7, 5, 2), (5, 64, 1), (None, 64, 2)):
        options = {"max_prefill_chunk": chunk, "max_prompt_logprob_rows": rows, "threads": threads}
        got, stats = answers(pair[1], asks, max_batch_size=6, max_num_tokens=64, kv_cache_memory="1MiB", **options)
        assert got == expected
        assert stats["prefix_hit_tokens"] > 0  # of the others
        assert stats["used_blocks"] == 0


@pytest.mark.parametrize("pair", ["llama"], indirect=True)  # with a window, four blocks are enough for all
def test_a_preempted_request_tells_of_each_token_once(pair: tuple[Path, Path]) -> None:
    asks = load(2, 90)
    expected = alone(pair[1], asks)
    with LLM(pair[1], kv_cache_memory="1MiB") as llm:
        block = llm.engine.kv_block_bytes
    for rows in (2, 64):

        def preempted(rows: int = rows) -> bool:
            got, stats = answers(
                pair[1], asks, max_batch_size=6, max_num_tokens=40, max_prompt_logprob_rows=rows, threads=1,
                kv_cache_memory=4 * block,
            )  # fmt: skip
            assert got == expected
            return bool(stats["preemptions"])

        wait_until(preempted, "a preemption")  # on a busy machine requests may come one after the other


def test_they_stream_as_the_prompt_is_worked_on(pair: tuple[Path, Path]) -> None:
    with LLM(pair[1], kv_cache_memory="1MiB", threads=1, max_prompt_logprob_rows=2) as llm:
        parts = list(llm.generate_async(prompt_of(100), SamplingParams(max_tokens=4, prompt_logprobs=1)))
    whole = parts[-1].prompt_logprobs
    assert whole is not None
    for part in parts:
        told = part.prompt_logprobs
        assert told is not None
        assert told == whole[: len(told)]
        assert len(told) == 100 or not part.outputs[0].token_ids


def test_more_than_the_vocabulary_is_refused(pair: tuple[Path, Path]) -> None:
    with LLM(pair[1], kv_cache_memory="1MiB", threads=1) as llm:
        every = llm.generate(prompt_of(3), SamplingParams(max_tokens=1, prompt_logprobs=VOCAB)).prompt_logprobs
        assert every is not None
        assert [len(table or ()) for table in every] == [0, VOCAB, VOCAB]
        with pytest.raises(InvalidRequestError, match="prompt_logprobs must be at most 101, got 102"):
            llm.generate(prompt_of(3), SamplingParams(prompt_logprobs=VOCAB + 1))
