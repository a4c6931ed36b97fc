"""/v1/chat/completions through OpenAI's clients: LLM.chat's answers, at once and streamed."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import openai
import pytest

from support.waiting import PATIENCE
from tensorwright import LLM, SamplingParams

TALK: Any = [
    {"role": "system", "content": "You write Python."},
    {"role": "user", "content": "Read a file."},
    {"role": "assistant", "content": "def read("},
    {"role": "user", "content": "Shorter."},
]


def test_an_answer_is_that_of_the_python_api(client: openai.OpenAI, llm: LLM) -> None:
    answer = client.chat.completions.create(model="pico", messages=TALK, temperature=0, max_completion_tokens=16)
    expected = llm.chat(TALK, SamplingParams(temperature=0, max_tokens=16))
    [choice] = answer.choices
    assert (choice.message.content, choice.message.role) == (expected.outputs[0].text, "assistant")
    assert choice.finish_reason == "length"
    assert choice.logprobs is None
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(expected.prompt_token_ids), 16)
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")


def test_choices_seeds_and_stop_strings(client: openai.OpenAI, llm: LLM) -> None:
    shape: dict[str, Any] = {"n": 3, "seed": 5, "stop": "\n", "max_tokens": 30, "temperature": 0.8}
    answer = client.chat.completions.create(model="pico", messages=TALK, **shape)
    expected = llm.chat(TALK, SamplingParams(**shape)).outputs
    assert [c.message.content for c in answer.choices] == [c.text for c in expected]
    assert [c.finish_reason for c in answer.choices] == [c.finish_reason for c in expected]
    assert len({c.message.content for c in answer.choices}) == 3
    assert "stop" in {c.finish_reason for c in answer.choices}


def test_without_a_length_the_answer_takes_the_room_that_is_left(client: openai.OpenAI, llm: LLM) -> None:
    talk: Any = [{"role": "user", "content": "a = b + c\n" * 330}]
    extra = {"ignore_eos": True}
    answer = client.chat.completions.create(model="pico", messages=talk, seed=1, extra_body=extra)
    expected = llm.chat(talk, SamplingParams(seed=1, max_tokens=None, ignore_eos=True)).outputs[0]
    assert answer.choices[0].message.content == expected.text
    assert answer.usage is not None
    assert answer.usage.total_tokens == llm.engine.max_seq_len
    assert answer.usage.completion_tokens > 16


def test_templates_get_their_variables_and_parts_are_joined(client: openai.OpenAI, llm: LLM) -> None:
    parts: Any = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    more = {"chat_template_kwargs": {"tone": "calm"}, "add_generation_prompt": False}
    answer = client.chat.completions.create(
        model="pico", messages=[{"role": "user", "content": parts}], temperature=0, max_tokens=12, extra_body=more
    )
    expected = llm.generate("# calm\n# user: a\nb\n", SamplingParams(temperature=0, max_tokens=12))
    assert answer.choices[0].message.content == expected.outputs[0].text


def test_developers_are_the_system(client: openai.OpenAI, llm: LLM) -> None:
    talk: Any = [{**TALK[0], "role": "developer"}, *TALK[1:]]
    answer = client.chat.completions.create(model="pico", messages=talk, temperature=0, max_tokens=8)
    expected = llm.chat(TALK, SamplingParams(temperature=0, max_tokens=8))
    assert answer.choices[0].message.content == expected.outputs[0].text
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(expected.prompt_token_ids)


@pytest.mark.parametrize(("path", "fields"), [("/v1/chat/completions", {"max_tokens": 1}), ("/tokenize", {})])
def test_a_model_without_template_is_named_and_what_to_do(
    url: str, llm: LLM, monkeypatch: pytest.MonkeyPatch, path: str, fields: dict[str, int]
) -> None:
    """Nothing of the server's inside is told."""
    monkeypatch.setitem(llm.engine.__dict__, "chat_templates", {})
    body = {"model": "pico", "messages": TALK, **fields}
    answer = httpx.post(f"{url}{path}", json=body, timeout=PATIENCE)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == (
        "model 'pico' has no chat template: use /v1/completions, or have the server started with --chat-template FILE"
    )
    monkeypatch.setattr(llm, "chat_template", "{{ messages[0].content }}")
    assert httpx.post(f"{url}{path}", json=body, timeout=PATIENCE).status_code == 200


@pytest.mark.parametrize("top", [0, 3])
def test_logprobs(client: openai.OpenAI, llm: LLM, top: int) -> None:
    shape: dict[str, Any] = {"seed": 3, "max_tokens": 10}
    answer = client.chat.completions.create(model="pico", messages=TALK, logprobs=True, top_logprobs=top, **shape)
    expected = llm.chat(TALK, SamplingParams(logprobs=top, **shape)).outputs[0]
    assert answer.choices[0].logprobs is not None
    content = answer.choices[0].logprobs.content
    assert content is not None
    assert expected.logprobs is not None
    assert len(content) == 10
    for entry, token, table in zip(content, expected.token_ids, expected.logprobs, strict=True):
        assert (entry.token, entry.logprob) == (table[token].decoded_token, table[token].logprob)
        best = sorted((other for other in table.values() if other.rank <= top), key=lambda other: other.rank)
        assert [(t.token, t.logprob) for t in entry.top_logprobs] == [(t.decoded_token, t.logprob) for t in best]
        assert len(entry.top_logprobs) == top
    assert bytes(byte for entry in content for byte in entry.bytes or []).decode() == answer.choices[0].message.content


@pytest.mark.parametrize(
    "shape",
    [
        {"temperature": 0, "max_tokens": 20},
        {"n": 3, "seed": 2, "temperature": 1.3, "max_tokens": 20, "logprobs": True, "top_logprobs": 2},
        {"temperature": 0, "stop": ["):"], "max_tokens": 60},
    ],
)
def test_a_streamed_answer_is_the_whole_one(url: str, shape: dict[str, Any]) -> None:
    async def ask() -> tuple[Any, list[Any]]:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            whole = await client.chat.completions.create(model="pico", messages=TALK, **shape)
            stream = await client.chat.completions.create(
                model="pico", messages=TALK, stream=True, stream_options={"include_usage": True}, **shape
            )
            return whole, [chunk async for chunk in stream]

    whole, (*chunks, last) = asyncio.run(ask())
    for choice in whole.choices:
        pieces = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == choice.index]
        assert (pieces[0].delta.role, pieces[0].delta.content) == ("assistant", "")
        assert all(piece.delta.role is None for piece in pieces[1:])
        assert "".join(piece.delta.content or "" for piece in pieces) == choice.message.content
        assert [piece.finish_reason for piece in pieces] == [None] * (len(pieces) - 1) + [choice.finish_reason]
        assert pieces[-1].delta.content is None
        logprobs = [entry for piece in pieces if piece.logprobs for entry in piece.logprobs.content]
        assert logprobs == (choice.logprobs.content if choice.logprobs else [])
    assert last.choices == []
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (
        whole.usage.prompt_tokens,
        whole.usage.completion_tokens,
    )
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
