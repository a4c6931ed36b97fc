"""Pinned prefixes over HTTP: for keys that have the right, each its own, and found by its requests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from support.served import completion
from support.waiting import PATIENCE, wait_until
from tensorwright import LLM
from tensorwright.runtime.serving.server.app import create_app
from tensorwright.runtime.serving.server.options import ServerOptions

TEXT = "import os\nimport sys\n\ndef main():\n    print(sys.argv, os.environ)\n" * 8
KEYS = ("one pinned_prefixes=2", "other pinned_prefixes=1", "none")


@pytest.fixture(scope="module")
def pinning(chat_engine: Path) -> Iterator[LLM]:
    with LLM(chat_engine, kv_cache_memory="16MiB", pinned_prefix_memory="4MiB", threads=1) as llm:
        yield llm


@pytest.fixture
def server(pinning: LLM) -> Iterator[FastAPI]:
    yield create_app({"pico": pinning}, ServerOptions(api_keys=KEYS))
    for pin in list(pinning.pins._pins.values()):
        pinning.pins.unpin(pin.name, pin.owner)


def ask(app: FastAPI, method: str, path: str, key: str = "one", **body: Any) -> httpx.Response:
    async def send() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
            headers = {"x-api-key": key}
            return await client.request(method, path, json=body or None, headers=headers, timeout=PATIENCE)

    return asyncio.run(send())


def pin(app: FastAPI, key: str = "one", name: str = "rules", **body: Any) -> httpx.Response:
    return ask(app, "POST", "/v1/pinned_prefixes", key, name=name, **(body or {"prompt": TEXT}))


def names(app: FastAPI, key: str) -> list[str]:
    return [card["name"] for card in ask(app, "GET", "/v1/pinned_prefixes", key).json()["data"]]


def cached(app: FastAPI, key: str) -> int:
    answer = ask(app, "POST", "/v1/completions", key, **completion(TEXT + "x = 1", 2)).json()
    tokens: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return tokens


def test_a_prefix_is_pinned_listed_and_unpinned(server: FastAPI, pinning: LLM) -> None:
    card = pin(server).json()
    assert {name: card[name] for name in ("name", "object", "model", "pinned")} == {
        "name": "rules", "object": "pinned_prefix", "model": "pico", "pinned": True,
    }  # fmt: skip
    assert cached(server, "one") == card["tokens"] > 100
    assert ask(server, "GET", "/v1/pinned_prefixes").json()["data"] == [card]
    wait_until(lambda: pinning.get_stats()["pinned_prefixes"] == 1)
    gone = ask(server, "DELETE", "/v1/pinned_prefixes/rules")
    assert gone.json() == {"name": "rules", "object": "pinned_prefix", "deleted": True}
    again = ask(server, "DELETE", "/v1/pinned_prefixes/rules")
    assert (again.status_code, again.json()["error"]["code"]) == (404, "prefix_not_found")
    wait_until(lambda: pinning.get_stats()["pinned_prefixes"] == 0)


def test_keys_have_their_own_prefixes_and_as_many_as_they_may(server: FastAPI) -> None:
    assert [pin(server, key).status_code for key in ("one", "other", "none")] == [200, 200, 403]
    assert pin(server, "other", "second").status_code == 400
    assert pin(server, "other").status_code == 200, "in place of its only one"
    assert pin(server, "one", "second").status_code == 200
    assert (names(server, "one"), names(server, "other"), names(server, "none")) == (["rules", "second"], ["rules"], [])
    assert ask(server, "DELETE", "/v1/pinned_prefixes/second", "other").status_code == 404
    assert (cached(server, "other") > 100, cached(server, "none")) == (True, 0)


def test_messages_and_tokens_are_pinned_too(server: FastAPI) -> None:
    talk = [{"role": "system", "content": TEXT}]
    assert pin(server, messages=talk).status_code == 200
    body = {"model": "pico", "messages": [*talk, {"role": "user", "content": "x"}], "max_tokens": 2}
    usage = ask(server, "POST", "/v1/chat/completions", **body).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] > 100
    assert pin(server, prompt=[5 + i % 90 for i in range(64)]).json()["tokens"] == 64


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"model": "pico"}, "exactly one of prompt and messages"),
        ({"prompt": "x", "messages": [{"role": "user", "content": "x"}]}, "exactly one of prompt and messages"),
        ({"prompt": "x", "tools": []}, "must come with messages"),
        ({"prompt": "x"}, "whole blocks"),
    ],
)
def test_what_is_no_prefix_is_refused(server: FastAPI, body: dict[str, Any], words: str) -> None:
    answer = pin(server, **body)
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]
