"""LLM over a fake engine: the shapes of prompts and results, parameters, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.fake_runtime import EOS, A, B, C, FakeEngine, ids, write_engine
from tensorwright.errors import InvalidRequestError, PromptTooLongError
from tensorwright.runtime.api.llm import LLM
from tensorwright.runtime.requests.prompts import RenderedPrompt
from tensorwright.runtime.requests.sampling_params import SamplingParams
from tensorwright.runtime.text.tokenizer import Tokenizer


def test_one_prompt_gives_one_output(llm: LLM) -> None:
    output = llm.generate("héllo", SamplingParams(max_tokens=8))
    assert output.prompt == "héllo"
    assert output.outputs[0].text == "hélloh\ufffd"  # the fake says the prompt again: 6 bytes, then 2 more
    assert output.outputs[0].token_ids == (output.prompt_token_ids * 2)[:8]
    assert (output.finished, output.outputs[0].finish_reason, output.outputs[0].stop_reason) == (True, "length", None)


def test_a_list_gives_a_list_in_order(llm: LLM) -> None:
    outputs = llm.generate(["abc", {"prompt": "xyz"}, ids(A, B)], SamplingParams(max_tokens=3))
    assert [output.outputs[0].text for output in outputs[:2]] == ["abc", "xyz"]
    assert outputs[2].outputs[0].token_ids == [A, B, A]
    assert outputs[2].prompt is None
    assert len({output.request_id for output in outputs}) == 3
    assert llm.generate(["abc"], SamplingParams(max_tokens=1))[0].outputs[0].text == "a"
    assert llm.generate([]) == []


def test_what_a_template_made_gets_no_further_special_tokens(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    encode = Tokenizer.encode_within
    monkeypatch.setattr(
        Tokenizer, "encode_within", lambda self, text, most, add=True: asked.append(add) or encode(self, text, most)
    )
    outputs = llm.generate([RenderedPrompt("a"), "a"], SamplingParams(max_tokens=1))
    assert asked == [False, True]
    assert [output.prompt for output in outputs] == ["a", "a"]


def test_params_per_prompt(llm: LLM, fake: FakeEngine) -> None:
    outputs = llm.generate([ids(A), ids(B)], [SamplingParams(max_tokens=1), SamplingParams(max_tokens=2)])
    assert [len(output.outputs[0].token_ids) for output in outputs] == [1, 2]
    with pytest.raises(InvalidRequestError, match=r"one per prompt \(2\), got 1"):
        llm.generate([ids(A), ids(B)], [SamplingParams()])


def test_params_reach_the_engine(llm: LLM, fake: FakeEngine) -> None:
    params = SamplingParams(max_tokens=2, temperature=0.5, top_k=-1, top_p=0.9, seed=7, stop_token_ids=[3], logprobs=1)
    sampling = fake.submitted[llm.generate(ids(A), params).request_id]
    assert vars(sampling) == {
        "max_tokens": 2, "temperature": 0.5, "top_k": 0, "top_p": 0.9, "seed": 7, "stop_token_ids": [3],
        "ignore_eos": False, "eos_token_ids": [EOS], "logprobs": 1, "min_tokens": 0, "min_p": 0.0,
        "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "logit_bias": [], "bad_words": [],
        "timeout_s": -1.0, "priority": 0, "tenant": 0, "tenant_weight": 1.0, "deadline_s": -1.0,
        "cache_salt": "", "prompt_logprobs": -1, "n": 1, "guided": False,
        "beam_width": 1, "length_penalty": 1.0, "early_stopping": "no", "typical_p": 1.0, "xtc_threshold": 0.1,
        "xtc_probability": 0.0, "dry_multiplier": 0.0, "dry_base": 1.75, "dry_allowed_length": 2,
        "dry_penalty_last_n": -1, "no_repeat_ngram_size": 0,
    }  # fmt: skip
    assert fake.submitted[llm.generate(ids(A)).request_id].logprobs == -1


def test_max_tokens_none_fills_the_engine(llm: LLM) -> None:
    output = llm.generate(ids(*[A] * 100), SamplingParams(max_tokens=None))
    assert len(output.outputs[0].token_ids) == 28


def test_logprobs_and_metrics(llm: LLM) -> None:
    output = llm.generate(ids(A, B), SamplingParams(max_tokens=2, logprobs=2))
    completion = output.outputs[0]
    assert completion.logprobs is not None
    assert [sorted(table) for table in completion.logprobs] == [[0, 1, A], [0, 1, B]]
    entry = completion.logprobs[0][A]
    assert (entry.logprob, entry.rank) == (-1.5, 1)
    assert entry.decoded_token == llm.engine.tokenizer.decode([A])
    assert completion.cumulative_logprob == -3.0
    metrics = output.metrics
    assert (metrics.queue_time, metrics.time_to_first_token, metrics.cached_tokens) == (0.25, 0.5, 0)
    assert metrics.time_per_output_token is not None
    assert metrics.time_per_output_token > 0
    plain = llm.generate(ids(A)).outputs[0]
    assert plain.logprobs is None
    assert plain.cumulative_logprob is None


def test_prompt_logprobs(llm: LLM, fake: FakeEngine) -> None:
    output = llm.generate(ids(A, B, C), SamplingParams(max_tokens=2, prompt_logprobs=0))
    assert output.prompt_logprobs is not None
    first, *tables = output.prompt_logprobs
    assert first is None
    assert [sorted(table) for table in tables if table is not None] == [[B], [C]]
    assert tables[1] is not None
    entry = tables[1][C]
    assert (entry.logprob, entry.rank, entry.decoded_token) == (-1.0, 1, llm.engine.tokenizer.decode([C]))  # type: ignore[union-attr]
    assert fake.submitted[output.request_id].prompt_logprobs == 0
    assert llm.generate(ids(A), SamplingParams(prompt_logprobs=3)).prompt_logprobs == [None]
    assert llm.generate(ids(A, B)).prompt_logprobs is None


def test_stop_tokens_and_end_of_sequence(llm: LLM) -> None:
    stopped = llm.generate(ids(A, B, C), SamplingParams(stop_token_ids=[B])).outputs[0]
    assert (stopped.token_ids, stopped.finish_reason, stopped.stop_reason) == ([A, B], "stop", B)
    ended = llm.generate(ids(A, EOS), SamplingParams()).outputs[0]
    assert (ended.token_ids, ended.finish_reason, ended.stop_reason) == ([A, EOS], "stop", None)
    assert ended.text == llm.engine.tokenizer.decode([A])  # the special token is no text
    ended = llm.generate(ids(A, EOS), SamplingParams(skip_special_tokens=False)).outputs[0]
    assert ended.text == llm.engine.tokenizer.decode([A])  # nor is it shown as the one that ended the request
    ignored = llm.generate(ids(A, EOS), SamplingParams(ignore_eos=True, max_tokens=4)).outputs[0]
    assert ignored.token_ids == [A, EOS, A, EOS]


@pytest.mark.parametrize(
    ("prompt", "error", "words"),
    [
        ("", InvalidRequestError, "at least one token"),
        (ids(), InvalidRequestError, "at least one token"),
        (ids(0, 257), InvalidRequestError, "0 to 256, got 257 at 1"),
        (ids(-1), InvalidRequestError, "got -1 at 0"),
        (ids(True), InvalidRequestError, "got True at 0"),
        ({"prompt_token_ids": "12"}, InvalidRequestError, "list of integers"),
        ({"promt": "x"}, InvalidRequestError, "no key 'promt'; did you mean prompt"),
        ({}, InvalidRequestError, 'either "prompt" or "prompt_token_ids", neither came'),
        ({"prompt": "a", "prompt_token_ids": [A]}, InvalidRequestError, 'either .* or "prompt_token_ids", both came'),
        ({"prompt": 3}, InvalidRequestError, "string"),
        (7, InvalidRequestError, "got int"),
        ("\ud800", InvalidRequestError, "Unicode"),
        (ids(*[A] * 113), PromptTooLongError, "128 tokens.*has 113 and max_tokens is 16"),
        ("x" * 200, PromptTooLongError, "has 200"),
    ],
)
def test_impossible_prompts_start_nothing(llm: LLM, fake: FakeEngine, prompt: Any, error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        llm.generate_async(prompt)
    with pytest.raises(error, match=words):
        llm.generate(["fine", prompt])
    assert not fake.submitted


def test_impossible_params_start_nothing(llm: LLM, fake: FakeEngine) -> None:
    for params in (SamplingParams(stop_token_ids=[257]), SamplingParams(logprobs=258), {"max_tokens": 1}):
        with pytest.raises(InvalidRequestError):
            llm.generate_async(ids(A), params)  # type: ignore[arg-type]
    assert not fake.submitted


def test_engine_without_tokenizer(fake: FakeEngine, tmp_path: Path) -> None:
    with LLM(write_engine(tmp_path / "bare", tokenizer=False), kv_cache_memory=1 << 20) as llm:
        params = SamplingParams(detokenize=False, max_tokens=2)
        assert llm.generate(ids(A, B), params).outputs[0].text == ""
        with pytest.raises(InvalidRequestError, match="no tokenizer, so a prompt must be token ids"):
            llm.generate("text", params)
        with pytest.raises(InvalidRequestError, match="detokenize=False"):
            llm.generate(ids(A))
