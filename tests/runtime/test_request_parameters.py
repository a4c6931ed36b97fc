"""LLM over a fake engine: parameters that are translated or checked on the way to the engine."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest

from support.fake_runtime import FakeEngine, write_engine
from tensorwright.errors import InvalidRequestError
from tensorwright.runtime.llm import LLM
from tensorwright.runtime.sampling_params import SamplingParams

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


def test_a_truncated_prompt_keeps_its_end(llm: LLM) -> None:
    output = llm.generate("abc" * 100, SamplingParams(max_tokens=1, truncate_prompt_tokens=5))
    assert llm.engine.tokenizer is not None
    assert output.prompt_token_ids == llm.engine.tokenizer.encode("bcabc")
    assert output.outputs[0].text == "b"
    assert llm.generate(IDS, SamplingParams(max_tokens=1, truncate_prompt_tokens=5)).prompt_token_ids == [10, 20]


def test_timeout_and_priority_reach_the_engine(llm: LLM, fake: FakeEngine) -> None:
    sampling = fake.submitted[llm.generate(IDS, SamplingParams(timeout=5, priority=-2)).request_id]
    assert (sampling.timeout_s, sampling.priority) == (5.0, -2)


def test_a_timeout_is_a_finish_and_costs_no_other_request(llm: LLM, fake: FakeEngine) -> None:
    fake.budget = 1
    slow = llm.generate_async(IDS, SamplingParams(max_tokens=50, timeout=1))
    partial = iter(slow)  # kept: an iterator that goes away aborts its request
    assert not next(partial).finished
    fake.time_out(slow.request_id)
    completion = slow.result(10).outputs[0]
    assert (completion.token_ids, completion.finish_reason, completion.stop_reason) == ([10], "timeout", None)
    fake.budget = None
    assert llm.generate(IDS).finished


def test_abort_by_id(llm: LLM, fake: FakeEngine) -> None:
    fake.budget = 1
    handle = llm.generate_async(IDS, SamplingParams(max_tokens=50))
    assert llm.abort(handle.request_id)
    assert handle.result(10).outputs[0].finish_reason == "abort"
    assert not llm.abort(handle.request_id)
    assert not llm.abort(12345)
