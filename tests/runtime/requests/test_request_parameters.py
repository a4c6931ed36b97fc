"""LLM over a fake engine: parameters that are translated or checked on the way to the engine."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest

from support.fake_runtime import FakeEngine, write_engine
from support.waiting import PATIENCE, wait_until
from tensorwright.errors import InvalidRequestError, NumericalError, PromptTooLongError
from tensorwright.runtime import _testing
from tensorwright.runtime.api.llm import LLM
from tensorwright.runtime.requests.sampling_params import SamplingParams

IDS = {"prompt_token_ids": [10, 20]}


def test_what_shapes_a_token_reaches_the_engine(llm: LLM, fake: FakeEngine) -> None:
    params = SamplingParams(
        max_tokens=4, min_tokens=2, min_p=0.25, repetition_penalty=1.5, presence_penalty=0.5, frequency_penalty=-1,
        logit_bias={7: -math.inf, 3: 1}, bad_words=[[1, 2], "ab"],
    )  # fmt: skip
    sampling = fake.submitted[llm.generate(IDS, params).request_id]
    fields = ("min_tokens", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias")
    assert [getattr(sampling, name) for name in fields] == [2, 0.25, 1.5, 0.5, -1.0, [(3, 1.0), (7, -math.inf)]]
    tokenizer = llm.engine.tokenizer
    assert tokenizer is not None
    assert sampling.bad_words == [[1, 2], tokenizer.encode("ab"), tokenizer.encode(" ab")]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"logit_bias": {257: 1.0}}, "logit_bias must be below 257"),
        ({"prompt_logprobs": 258}, "prompt_logprobs must be at most 257, got 258"),
        ({"bad_words": [[1, 257]]}, "bad_words must be below 257"),
        ({"bad_words": ["\ud800"]}, "not valid Unicode"),
        ({"bad_words": ["a" * 65]}, "bad_words.* must have at most 64 tokens, got 65"),
        ({"max_tokens": None, "min_tokens": 127}, "min_tokens must be at most 126"),
    ],
)
def test_what_this_engine_cannot_do_is_refused_before_work(
    llm: LLM, fake: FakeEngine, fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        llm.generate(IDS, SamplingParams(**fields))
    assert not fake.submitted


def test_bad_words_as_text_need_a_tokenizer(fake: FakeEngine, tmp_path: Path) -> None:
    with LLM(write_engine(tmp_path / "engine", tokenizer=False), kv_cache_memory="1MiB") as llm:
        params = SamplingParams(detokenize=False, bad_words=[[3]], max_tokens=1)
        llm.generate(IDS, params)
        with pytest.raises(InvalidRequestError, match="lists of token ids"):
            llm.generate(IDS, dataclasses.replace(params, bad_words=["a"]))


def test_several_completions_stream_side_by_side(llm: LLM, fake: FakeEngine) -> None:
    seen = list(llm.generate_async({"prompt_token_ids": [10, 20, 30]}, SamplingParams(n=3, max_tokens=4)))
    assert [c.token_ids for c in seen[-1].outputs] == [[10, 20, 30, 10], [20, 30, 10, 20], [30, 10, 20, 30]]
    assert [(c.index, c.finish_reason) for c in seen[-1].outputs] == [(0, "length"), (1, "length"), (2, "length")]
    assert [output.finished for output in seen] == [False] * (len(seen) - 1) + [True]
    assert all(len(output.outputs) == 3 for output in seen)


def test_a_stop_string_ends_one_completion(llm: LLM, fake: FakeEngine) -> None:
    output = llm.generate("abcd", SamplingParams(n=4, max_tokens=7, stop="dab"))
    assert [c.text for c in output.outputs] == ["abc", "bc", "c", "dabcdab"[:0]]
    fake.gate.clear()
    handle = llm.generate_async("abcd", SamplingParams(n=2, max_tokens=50, stop="ab"))
    fake.budget = 5
    fake.gate.set()
    assert [c.text for c in handle.result(PATIENCE).outputs] == ["", "bcd"]
    wait_until(lambda: not fake.stats()["running"])  # both were aborted in the engine, one by one


def test_the_end_of_a_request_is_that_of_all_its_completions(llm: LLM, fake: FakeEngine) -> None:
    for end, words in [(fake.time_out, "timeout"), (llm.abort, "abort")]:
        fake.gate.clear()
        handle = llm.generate_async(IDS, SamplingParams(n=2, max_tokens=100, timeout=60))
        end(handle.request_id)
        fake.gate.set()
        assert {c.finish_reason for c in handle.result(PATIENCE).outputs} == {words}
    fake.gate.clear()
    handle = llm.generate_async(IDS, SamplingParams(n=2))
    fake.fail_request(handle.request_id, "NumericalError", "NaN")
    with pytest.raises(NumericalError, match="NaN"):
        handle.result(PATIENCE)


def test_more_completions_than_there_is_room_for_are_refused(fake: FakeEngine, tmp_path: Path) -> None:
    fake.blocks = 7  # of 32 positions
    with LLM(write_engine(tmp_path / "engine"), kv_cache_memory="1MiB", max_batch_size=4) as llm:
        with pytest.raises(InvalidRequestError, match=r"n must be at most max_batch_size.* has 4, got 5"):
            llm.generate(IDS, SamplingParams(n=5))
        prompt = {"prompt_token_ids": [7] * 33}  # one block shared, two left for each of three
        assert fake.submitted[llm.generate(prompt, SamplingParams(n=3, max_tokens=None)).request_id].max_tokens == 64
        with pytest.raises(PromptTooLongError, match=r"with 3 completions side by side holds 97 .*: .*lower n"):
            llm.generate(prompt, SamplingParams(n=3, max_tokens=65))


def test_a_window_asks_for_its_own_blocks_only(fake: FakeEngine, tmp_path: Path) -> None:
    fake.blocks, fake.windows = 3, [40]  # a window takes up to three blocks of 32 positions
    with LLM(write_engine(tmp_path / "engine"), kv_cache_memory="1MiB") as llm:
        prompt = {"prompt_token_ids": [7] * 100}
        assert fake.submitted[llm.generate(prompt, SamplingParams(max_tokens=None)).request_id].max_tokens == 28
        with pytest.raises(PromptTooLongError, match="with 2 completions"):
            llm.generate(prompt, SamplingParams(n=2, max_tokens=20))
    fake.stopped, fake.windows = False, [40, 0]
    another = LLM(write_engine(tmp_path / "another"), kv_cache_memory="1MiB")
    with another, pytest.raises(PromptTooLongError, match="KV cache holds 97"):
        another.generate(prompt, SamplingParams(max_tokens=20))


def test_seeds_of_completions() -> None:
    params = SamplingParams(n=3, seed=2**64 - 1)
    assert [params.completion_seed(i) for i in range(2)] == [2**64 - 1, 0x9E3779B97F4A7C14]
    assert SamplingParams(n=3).completion_seed(1) is None
    for index in range(5):
        assert SamplingParams(seed=77).completion_seed(index) == _testing.completion_seed(77, index)


def test_a_truncated_prompt_keeps_its_end(llm: LLM) -> None:
    output = llm.generate("abc" * 100, SamplingParams(max_tokens=1, truncate_prompt_tokens=5))
    assert llm.engine.tokenizer is not None
    assert output.prompt_token_ids == llm.engine.tokenizer.encode("bcabc")
    assert output.outputs[0].text == "b"
    assert llm.generate(IDS, SamplingParams(max_tokens=1, truncate_prompt_tokens=5)).prompt_token_ids == [10, 20]


def test_timeout_and_priority_reach_the_engine(llm: LLM, fake: FakeEngine) -> None:
    params = SamplingParams(timeout=5, priority=-2, cache_salt="mine")
    sampling = fake.submitted[llm.generate(IDS, params).request_id]
    assert (sampling.timeout_s, sampling.priority, sampling.cache_salt) == (5.0, -2, "mine")


def test_a_timeout_is_a_finish_and_costs_no_other_request(llm: LLM, fake: FakeEngine) -> None:
    fake.budget = 1
    slow = llm.generate_async(IDS, SamplingParams(max_tokens=50, timeout=1))
    partial = iter(slow)  # kept: an iterator that goes away aborts its request
    assert not next(partial).finished
    fake.time_out(slow.request_id)
    completion = slow.result(PATIENCE).outputs[0]
    assert (completion.token_ids, completion.finish_reason, completion.stop_reason) == ([10], "timeout", None)
    fake.budget = None
    assert llm.generate(IDS).finished


def test_abort_by_id(llm: LLM, fake: FakeEngine) -> None:
    fake.budget = 1
    handle = llm.generate_async(IDS, SamplingParams(max_tokens=50))
    assert llm.abort(handle.request_id)
    assert handle.result(PATIENCE).outputs[0].finish_reason == "abort"
    assert not llm.abort(handle.request_id)
    assert not llm.abort(12345)
