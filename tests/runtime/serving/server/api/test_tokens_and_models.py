"""/tokenize, /detokenize and /v1/models."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest

from support.waiting import PATIENCE
from tensorwright import LLM, SamplingParams
from tensorwright.runtime.serving.server.app import create_app

TALK = [{"role": "user", "content": "日本 🙂"}]


def post(url: str, path: str, **body: Any) -> Any:
    answer = httpx.post(f"{url}{path}", json=body, timeout=PATIENCE)
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


ASKED: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "x", "max_tokens": 2},
    "/v1/chat/completions": {"messages": TALK, "max_tokens": 2},
    "/tokenize": {"prompt": "x"},
    "/detokenize": {"tokens": [5]},
}


@pytest.mark.parametrize("path", ASKED)
def test_a_model_must_be_named_where_there_are_two(url: str, path: str) -> None:
    answer = httpx.post(f"{url}{path}", json=ASKED[path], timeout=PATIENCE)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "model must be one of pico, some/tiny, endless, got none"


@pytest.mark.parametrize("more", [{}, {"model": None}, {"stream": True}])
@pytest.mark.parametrize("path", ASKED)
def test_a_model_alone_need_not_be_named(llm: LLM, path: str, more: dict[str, Any]) -> None:
    """Its name is in the answer, and in every event of a stream."""
    app = create_app({"only": llm})
    stream = more.get("stream") and path.startswith("/v1")

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
            return await client.post(path, json={**ASKED[path], **(more if path.startswith("/v1") else {})})

    answer = asyncio.run(ask())
    assert answer.status_code == 200, answer.text
    if not path.startswith("/v1"):
        return
    texts = [event.removeprefix("data: ") for event in answer.text.split("\n\n")[:-2]] if stream else [answer.text]
    assert texts
    assert {json.loads(text)["model"] for text in texts} == {"only"}


def test_models(client: openai.OpenAI, llm: LLM, tiny_llm: LLM, endless_llm: LLM) -> None:
    models = client.models.list().data
    assert [model.id for model in models] == ["pico", "some/tiny", "endless"]
    for model, served in zip(models, (llm, tiny_llm, endless_llm), strict=True):
        assert client.models.retrieve(model.id) == model
        assert model.owned_by == "tensorwright"
        assert model.model_extra == {"max_model_len": served.engine.max_seq_len, "parent": None, "task": "generate"}
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("gpt")
    assert caught.value.code == "model_not_found"
