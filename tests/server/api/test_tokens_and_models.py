"""/tokenize, /detokenize and /v1/models."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest

from tensorwright import LLM, SamplingParams

TALK = [{"role": "user", "content": "日本 🙂"}]


def post(url: str, path: str, **body: Any) -> Any:
    answer = httpx.post(f"{url}{path}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("text", ["def f(x):\n    return x", "日本語🙂é", ""])
def test_there_and_back(url: str, llm: LLM, text: str) -> None:
    answer = post(url, "/tokenize", model="pico", prompt=text)
    assert llm.engine.tokenizer is not None
    assert answer["tokens"] == llm.engine.tokenizer.encode(text)
    assert answer["count"] == len(answer["tokens"])
    assert (answer["max_model_len"], answer["token_strs"]) == (llm.engine.max_seq_len, None)
    assert post(url, "/detokenize", model="pico", tokens=answer["tokens"]) == {"prompt": text}


@pytest.mark.parametrize("start", [False, True])
def test_messages_are_tokenized_as_a_chat_completion_does(url: str, llm: LLM, start: bool) -> None:
    more = {"chat_template_kwargs": {"tone": "calm"}, "add_generation_prompt": start}
    answer = post(url, "/tokenize", model="pico", messages=TALK, **more)
    expected = llm.chat(
        TALK, SamplingParams(max_tokens=1), add_generation_prompt=start, template_variables={"tone": "calm"}
    )
    assert answer["tokens"] == expected.prompt_token_ids


def test_tokens_as_the_vocabulary_spells_them(url: str) -> None:
    answer = post(url, "/tokenize", model="pico", prompt="import os", return_token_strs=True)
    assert "".join(answer["token_strs"]).replace("Ġ", " ") == "import os"
    assert len(answer["token_strs"]) == answer["count"]


def test_special_tokens_are_shown(url: str) -> None:
    assert post(url, "/detokenize", model="pico", tokens=[0]) == {"prompt": "<|endoftext|>"}


def test_a_model_must_be_named_where_there_are_two(url: str) -> None:
    answer = httpx.post(f"{url}/tokenize", json={"prompt": "x"})
    assert answer.status_code == 400
    assert "some/tiny" in answer.json()["error"]["message"]


def test_models(client: openai.OpenAI, llm: LLM) -> None:
    models = client.models.list().data
    assert [model.id for model in models] == ["pico", "some/tiny"]
    for model in models:
        assert client.models.retrieve(model.id) == model
        assert model.owned_by == "tensorwright"
        assert model.model_extra == {"max_model_len": llm.engine.max_seq_len}
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("gpt")
    assert caught.value.code == "model_not_found"
