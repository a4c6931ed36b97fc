"""Several completions of one prompt: computed once, in shared blocks, each the bits of a request of its own."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.waiting import PATIENCE, wait_until
from tensorwright import LLM, SamplingParams
from tensorwright.runtime.requests.outputs import CompletionOutput

PROMPT = [(13 * i) % 8192 for i in range(170)]  # five full blocks and a part


def bits(completion: CompletionOutput) -> Any:
    tables = [{t: (lp.logprob.hex(), lp.rank) for t, lp in table.items()} for table in completion.logprobs or []]
    return completion.token_ids, tables, completion.text, completion.finish_reason, completion.stop_reason


@pytest.fixture(scope="module")
def solo(pico_engine: Path) -> Iterator[LLM]:
    with LLM(pico_engine, threads=1, enable_prefix_caching=False, kv_cache_memory="64MiB", max_batch_size=1) as llm:
        yield llm


def alone(solo: LLM, prompt: list[int], params: SamplingParams) -> list[Any]:
    """Each completion as a request of its own, with its seed."""
    seeds = [params.completion_seed(i) for i in range(params.n)]
    each = [dataclasses.replace(params, n=1, seed=seed) for seed in seeds]
    return [bits(solo.generate({"prompt_token_ids": prompt}, one).outputs[0]) for one in each]


@pytest.mark.parametrize("caching", [True, False])
def test_they_share_the_prompt(pico_engine: Path, solo: LLM, caching: bool) -> None:
    params = SamplingParams(n=8, seed=3, max_tokens=40, logprobs=1, ignore_eos=True, top_p=0.9)
    used = []
    with LLM(pico_engine, threads=2, kv_cache_memory="64MiB", max_batch_size=8, enable_prefix_caching=caching) as llm:
        for output in llm.generate_async({"prompt_token_ids": PROMPT}, params):  # noqa: B007
            used.append(llm.get_stats()["used_blocks"])
        stats = llm.get_stats()
    assert [bits(c) for c in output.outputs] == alone(solo, PROMPT, params)
    assert len({tuple(c.token_ids) for c in output.outputs}) == 8
    # Positions 170 to 208 of each lie in the sixth and seventh block; five are everybody's.
    assert max(used) <= 5 + 8 * 2 < 8 * 6
    assert stats["prefill_tokens"] == len(PROMPT)
    assert (stats["used_blocks"], stats["requests_finished"], stats["preemptions"]) == (0, 1, 0)


def test_greedy_ones_are_equal_and_the_first_is_the_only_one(pico_engine: Path, solo: LLM) -> None:
    params = SamplingParams(n=3, temperature=0, max_tokens=24, logprobs=0)
    with LLM(pico_engine, threads=2, kv_cache_memory="64MiB", max_batch_size=4) as llm:
        greedy = llm.generate("def read_file(", params)
        assert len({repr(bits(c)) for c in greedy.outputs}) == 1
        assert [c.index for c in greedy.outputs] == [0, 1, 2]
        unseeded = llm.generate("def read_file(", SamplingParams(n=3, max_tokens=24))
        assert len({repr(bits(c)) for c in unseeded.outputs}) == 3


def test_stop_strings_end_one_completion_in_the_engine(pico_engine: Path, solo: LLM) -> None:
    prompt = "import os\n"
    params = SamplingParams(n=6, seed=1, max_tokens=150, ignore_eos=True, logprobs=0)
    with LLM(pico_engine, threads=2, kv_cache_memory="64MiB", max_batch_size=6) as llm:
        ids = llm.generate(prompt, SamplingParams(max_tokens=1)).prompt_token_ids
        texts = [c.text for c in llm.generate(prompt, params).outputs]
        stop = next(t[40:44] for t in texts if sum(t[40:44] in other for other in texts) < 6)
        before = llm.get_stats()["generated_tokens"]
        stopping = dataclasses.replace(params, stop=stop)
        output = llm.generate(prompt, stopping)
        assert {c.finish_reason for c in output.outputs} == {"stop", "length"}
        made = llm.get_stats()["generated_tokens"] - before
        assert made < 6 * 150 - 20  # those that stopped were ended in the engine
    assert [bits(c) for c in output.outputs] == alone(solo, ids, stopping)


def asks(count: int, seed: int) -> list[tuple[list[int], SamplingParams, int | None]]:
    rng = random.Random(seed)
    table = []
    for i in range(count):
        prompt = PROMPT[: rng.choice([0, 32, 64, 70])] + [rng.randrange(8192) for _ in range(rng.randrange(1, 30))]
        params = SamplingParams(
            n=rng.randrange(1, 5), seed=i, max_tokens=rng.randrange(1, 60), logprobs=rng.choice([None, 1]),
            temperature=rng.choice([0.0, 0.9, 1.5]), priority=rng.choice([0, 0, 1]), ignore_eos=rng.random() < 0.8,
            stop_token_ids=[rng.randrange(8192) for _ in range(40)], presence_penalty=rng.choice([0, 0.5]),
        )  # fmt: skip
        table.append((prompt, params, rng.randrange(1, 20) if rng.random() < 0.2 else None))
    return table


def ask_and_cancel(llm: LLM, asked: list[tuple[list[int], SamplingParams, int | None]], expected: list[Any]) -> None:
    """All at once; a request with a patience is cancelled after so many tokens."""
    running = [llm.generate_async({"prompt_token_ids": prompt}, params) for prompt, params, _ in asked]
    for handle, (_, _, patience) in zip(running, asked, strict=True):
        for output in handle if patience else ():
            if any(len(c.token_ids) >= (patience or 0) for c in output.outputs):
                handle.abort()
                break
    for handle, (_, _, patience), own in zip(running, asked, expected, strict=True):
        for got, wanted in zip(handle.result(PATIENCE).outputs, own, strict=True):
            if got.finish_reason == "abort":
                assert patience is not None
                assert got.token_ids == wanted[0][: len(got.token_ids)]
            else:
                assert bits(got) == wanted


@pytest.mark.parametrize(("caching", "chunk"), [(True, 512), (False, 7)])
def test_a_crowd_with_cancels_and_preemptions(pico_engine: Path, solo: LLM, caching: bool, chunk: int) -> None:
    with LLM(
        pico_engine, threads=2, kv_cache_memory="2MiB", max_batch_size=8, max_prefill_chunk=chunk, max_num_tokens=520,
        enable_prefix_caching=caching,
    ) as llm:  # fmt: skip
        expected = [alone(solo, prompt, params) for prompt, params, _ in asks(16, chunk)]

        def preempted() -> bool:
            ask_and_cancel(llm, asks(16, chunk), expected)
            return bool(llm.get_stats()["preemptions"])

        wait_until(preempted, "a preemption")  # on a busy machine requests may come one after the other
        stats = llm.get_stats()
    assert (stats["used_blocks"], stats["waste_slots"]) == (0, 0)
    assert stats["free_blocks"] + stats["cached_blocks"] == stats["total_blocks"]
