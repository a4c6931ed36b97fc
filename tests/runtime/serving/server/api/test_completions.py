"""/v1/completions through OpenAI's client: what the Python API gives, in OpenAI's form."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest

from support.waiting import PATIENCE
from tensorwright import LLM, SamplingParams

PROMPTS = ["def read_file(", "import os\nimport", "class Node:\n    def __init__("]
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 12}


def ids_of(llm: LLM, text: str) -> list[int]:
    assert llm.engine.tokenizer is not None
    return llm.engine.tokenizer.encode(text)


@pytest.mark.parametrize("ids", [False, True])
@pytest.mark.parametrize("many", [False, True])
def test_every_form_of_prompt(client: openai.OpenAI, llm: LLM, ids: bool, many: bool) -> None:
    texts = PROMPTS if many else PROMPTS[:1]
    prompts: Any = [ids_of(llm, text) for text in texts] if ids else texts
    answer = client.completions.create(model="pico", prompt=prompts if many else prompts[0], **GREEDY)
    expected = llm.generate(texts, SamplingParams(**GREEDY))
    assert [choice.text for choice in answer.choices] == [output.outputs[0].text for output in expected]
    assert [choice.index for choice in answer.choices] == list(range(len(texts)))
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == sum(len(output.prompt_token_ids) for output in expected)
    assert answer.usage.completion_tokens == 12 * len(texts)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12 * len(texts)


def test_choices_of_many_prompts_stand_prompt_by_prompt(client: openai.OpenAI, llm: LLM) -> None:
    answer = client.completions.create(model="pico", prompt=PROMPTS, n=3, seed=7, max_tokens=8)
    expected = llm.generate(PROMPTS, SamplingParams(n=3, seed=7, max_tokens=8))
    assert [c.text for c in answer.choices] == [c.text for output in expected for c in output.outputs]
    assert [c.index for c in answer.choices] == list(range(9))
    assert len({c.text for c in answer.choices}) == 9


def test_the_best_of_a_beam_search(client: openai.OpenAI, llm: LLM) -> None:
    asked = {"use_beam_search": True, "length_penalty": 0.5, "early_stopping": "never"}
    answer = client.completions.create(
        model="pico", prompt=PROMPTS, n=2, best_of=4, max_tokens=8, logprobs=1, extra_body=asked
    )
    params = SamplingParams(n=2, beam_width=4, length_penalty=0.5, early_stopping="never", max_tokens=8, logprobs=1)
    expected = llm.generate(PROMPTS, params)
    assert [c.text for c in answer.choices] == [c.text for output in expected for c in output.outputs]
    said = client.chat.completions.create(
        model="pico", messages=[{"role": "user", "content": "a"}], n=2, max_tokens=6,
        extra_body={"use_beam_search": True},
    )  # fmt: skip
    assert len({choice.message.content for choice in said.choices}) == 2
    one = client.completions.create(model="pico", prompt=PROMPTS[0], max_tokens=8, extra_body={"use_beam_search": True})
    greedy = llm.generate(PROMPTS[0], SamplingParams(max_tokens=8, temperature=0))
    assert one.choices[0].text == greedy.outputs[0].text


SHAPES: list[dict[str, Any]] = [
    {"top_k": 4, "seed": 3},
    {"min_p": 0.2, "top_p": 0.9, "seed": 3},
    {"repetition_penalty": 1.5, "temperature": 0},
    {"typical_p": 0.5, "xtc_probability": 0.5, "xtc_threshold": 0.05, "seed": 3},
    {
        "dry_multiplier": 2,
        "dry_base": 1.5,
        "dry_allowed_length": 1,
        "dry_penalty_last_n": 40,
        "temperature": 0,
        "dry_sequence_breakers": ["self"],
    },
    {"no_repeat_ngram_size": 2, "temperature": 0},
    {"presence_penalty": 1.5, "frequency_penalty": 1.5, "temperature": 0},
    {"bad_words": ["self"], "temperature": 0},
    {"stop_token_ids": [11, 12, 13, 14, 15, 16, 17], "min_tokens": 4, "temperature": 0},
    {"truncate_prompt_tokens": 3, "temperature": 0},
    {"ignore_eos": True, "skip_special_tokens": False, "seed": 4, "priority": -3, "cache_salt": "mine"},
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "-".join(shape))
def test_more_fields_than_openai_has(client: openai.OpenAI, llm: LLM, shape: dict[str, Any]) -> None:
    answer = client.completions.create(model="pico", prompt=PROMPTS[2], max_tokens=16, extra_body=shape)
    expected = llm.generate(PROMPTS[2], SamplingParams(max_tokens=16, **shape))
    assert answer.choices[0].text == expected.outputs[0].text
    assert answer.choices[0].finish_reason == expected.outputs[0].finish_reason
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(expected.prompt_token_ids)


def test_biases_are_keyed_by_text(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="pico", prompt="x", logit_bias={"40": 100}, logprobs=0, **GREEDY)
    assert answer.choices[0].logprobs is not None
    assert len(set(answer.choices[0].logprobs.tokens or [])) == 1


def test_negative_seeds_are_taken_as_64_bits(client: openai.OpenAI, llm: LLM) -> None:
    answer = client.completions.create(model="pico", prompt="x", seed=-2)
    assert answer.choices[0].text == llm.generate("x", SamplingParams(seed=2**64 - 2)).outputs[0].text


@pytest.mark.parametrize("include", [False, True])
def test_stop_strings(client: openai.OpenAI, llm: LLM, include: bool) -> None:
    text = llm.generate(PROMPTS[0], SamplingParams(**GREEDY)).outputs[0].text
    stop = text[4:7]
    answer = client.completions.create(
        model="pico",
        prompt=PROMPTS[0],
        stop=["@@@", stop],
        extra_body={"include_stop_str_in_output": include},
        **GREEDY,
    )
    assert answer.choices[0].text == text[: text.index(stop) + (len(stop) if include else 0)]
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].model_extra == {"stop_reason": stop}


def test_logprobs(client: openai.OpenAI, llm: LLM) -> None:
    answer = client.completions.create(model="pico", prompt=PROMPTS[0], logprobs=3, seed=5, max_tokens=12)
    expected = llm.generate(PROMPTS[0], SamplingParams(logprobs=3, seed=5, max_tokens=12)).outputs[0]
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert expected.logprobs is not None
    chosen = [table[token] for token, table in zip(expected.token_ids, expected.logprobs, strict=True)]
    assert logprobs.token_logprobs == [entry.logprob for entry in chosen]
    assert logprobs.tokens == [entry.decoded_token for entry in chosen]
    assert logprobs.top_logprobs == [
        {entry.decoded_token: entry.logprob for entry in table.values()} for table in expected.logprobs
    ]
    assert logprobs.text_offset is not None
    for start, token in zip(logprobs.text_offset, logprobs.tokens or [], strict=True):
        assert answer.choices[0].text[start:].startswith(token)


@pytest.mark.parametrize("length", [0, 5])
@pytest.mark.parametrize("ids", [False, True])
def test_echo_scores_the_prompt(client: openai.OpenAI, llm: LLM, length: int, ids: bool) -> None:
    prompt: Any = ids_of(llm, PROMPTS[2]) if ids else PROMPTS[2]
    answer = client.completions.create(
        model="pico", prompt=prompt, echo=True, logprobs=2, max_tokens=length, temperature=0
    )
    params = SamplingParams(temperature=0, max_tokens=max(1, length), logprobs=2, prompt_logprobs=2)
    expected = llm.generate(PROMPTS[2], params)
    made = expected.outputs[0]
    assert answer.choices[0].text == PROMPTS[2] + (made.text if length else "")
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == length
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert expected.prompt_logprobs is not None
    assert made.logprobs is not None
    tables = [*expected.prompt_logprobs, *made.logprobs[:length]]
    tokens = [*expected.prompt_token_ids, *made.token_ids[:length]]
    scores = [table and table[token].logprob for table, token in zip(tables, tokens, strict=True)]
    assert scores[0] is None
    assert logprobs.token_logprobs == scores
    assert "".join(logprobs.tokens or []) == answer.choices[0].text


def test_echo_without_logprobs(client: openai.OpenAI, llm: LLM) -> None:
    answer = client.completions.create(model="pico", prompt=PROMPTS[:2], n=2, echo=True, seed=1)
    expected = llm.generate(PROMPTS[:2], SamplingParams(n=2, seed=1))
    assert [c.text for c in answer.choices] == [out.prompt + c.text for out in expected for c in out.outputs]  # type: ignore[operator]


def test_parts_of_characters_are_shown_as_bytes(client: openai.OpenAI, llm: LLM) -> None:
    prompt = "日本🙂"
    answer = client.completions.create(model="pico", prompt=prompt, echo=True, logprobs=1, max_tokens=0)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert len(logprobs.tokens) == len(ids_of(llm, prompt)) > 3
    raw = b"".join(
        bytes.fromhex(token.removeprefix("bytes:").replace("\\x", "")) if token.startswith("bytes:") else token.encode()
        for token in logprobs.tokens
    )
    assert raw.decode() == prompt
    assert logprobs.text_offset is not None
    assert [prompt[offset] for offset in logprobs.text_offset] == sorted(
        (prompt[offset] for offset in logprobs.text_offset), key=prompt.index
    )


def test_cached_tokens_and_fingerprints(client: openai.OpenAI) -> None:
    prompt = "# a prompt of more than a block\n" * 12
    first, second = (client.completions.create(model="pico", prompt=prompt, max_tokens=1) for _ in range(2))
    for answer, least in ((first, 0), (second, 32)):
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        assert (answer.usage.prompt_tokens_details.cached_tokens or 0) >= least
    assert first.usage.prompt_tokens_details.cached_tokens == 0  # type: ignore[union-attr]
    assert first.system_fingerprint == second.system_fingerprint
    assert (first.system_fingerprint or "").startswith("fp_")
    assert first.id != second.id


def test_the_form_of_an_answer(url: str) -> None:
    body = {"model": "pico", "prompt": "x", "max_tokens": 2, "suffix": None, "user": "me", "stream": False}
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=PATIENCE).json()
    assert set(answer) == {"id", "object", "created", "model", "system_fingerprint", "choices", "usage"}
    assert (answer["object"], answer["model"]) == ("text_completion", "pico")
    assert set(answer["choices"][0]) == {"index", "text", "logprobs", "finish_reason", "stop_reason"}
    assert answer["choices"][0]["logprobs"] is None
    assert set(answer["usage"]["prompt_tokens_details"]) == {"cached_tokens"}
