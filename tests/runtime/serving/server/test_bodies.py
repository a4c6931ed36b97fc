"""What a body may hold: its JSON is counted before it is parsed, and its fields are bounded before anything is made."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from support.served import completion
from tensorwright import LLM
from tensorwright.errors import InvalidRequestError, QueueFullError
from tensorwright.runtime.base import request_bounds as bounds
from tensorwright.runtime.serving.server import body_route, completions, json_shape
from tensorwright.runtime.serving.server.app import create_app
from tensorwright.runtime.serving.server.body_memory import BodyMemory
from tensorwright.runtime.serving.server.body_route import read_body
from tensorwright.runtime.serving.server.chat_request import ChatCompletionRequest
from tensorwright.runtime.serving.server.completion_request import CompletionRequest
from tensorwright.runtime.serving.server.guards import BodyGuard
from tensorwright.runtime.serving.server.json_shape import SMALL_BODY, check_shape
from tensorwright.runtime.serving.server.options import ServerOptions
from tensorwright.runtime.serving.server.tokenization import DetokenizeRequest, TokenizeRequest

MANY = 5000  # more than any bound of entries, and less than those of the JSON
USER = {"role": "user", "content": "x"}


def counts(value: Any, depth: int = 0) -> tuple[int, int, int]:
    """Depth, parts and commas of a value, by walking it."""
    if isinstance(value, str):
        return depth, 1, 0
    if not isinstance(value, (list, dict)):
        return depth, 0, 0
    inner = [counts(part, depth + 1) for part in (value.values() if isinstance(value, dict) else value)]
    keys = len(value) if isinstance(value, dict) else 0
    parts, commas = sum(part for _, part, _ in inner), sum(comma for *_, comma in inner)
    return max([depth + 1, *(deep for deep, *_ in inner)]), 1 + keys + parts, max(0, len(value) - 1) + commas


def some_json(rng: random.Random, depth: int) -> Any:
    kind = rng.choice(["text", "number", "list", "object"] if depth else ["text", "number"])
    if kind == "text":
        return "".join(rng.choice('a"\\[]{},:\n\u00e9') for _ in range(rng.randrange(6)))
    if kind == "number":
        return rng.choice([1, -2.5, True, None])
    parts = [some_json(rng, depth - 1) for _ in range(rng.randrange(4))]
    return parts if kind == "list" else {f"{number}\\{part!s:.3}": part for number, part in enumerate(parts)}


@pytest.mark.parametrize("seed", range(20))
def test_it_counts_what_a_parser_would_make(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the text is cut into pieces: each bound admits just what there is, and nothing more."""
    rng = random.Random(seed)
    for _ in range(20):
        value = some_json(rng, 5)
        text = json.dumps(value, ensure_ascii=rng.random() < 0.5).encode()
        monkeypatch.setattr(json_shape, "PIECE", rng.randrange(1, 9))
        depth, parts, commas = counts(value)
        for name, there_is in (("BODY_DEPTH", depth), ("BODY_PARTS", parts), ("BODY_VALUES", commas)):
            with monkeypatch.context() as bound:
                bound.setattr(json_shape, name, there_is)
                check_shape(text)
                if there_is:
                    bound.setattr(json_shape, name, there_is - 1)
                    with pytest.raises(InvalidRequestError, match="the body must have"):
                        check_shape(text)


WRONG: list[tuple[type[Any], dict[str, Any]]] = [
    (CompletionRequest, completion(stop=[1] * MANY)),
    (CompletionRequest, completion(stop=["a"] * MANY)),
    (CompletionRequest, completion(stop="a" * MANY)),
    (CompletionRequest, completion(stop_token_ids=["a"] * MANY)),
    (CompletionRequest, completion(bad_words=[1] * MANY)),
    (CompletionRequest, completion(logit_bias=dict.fromkeys(map(str, range(MANY)), "a"))),
    (CompletionRequest, completion(guided_choice=[1] * MANY)),
    (CompletionRequest, completion(guided_json={"a": "b" * (bounds.GRAMMAR_LENGTH + 1)})),
    (CompletionRequest, completion(guided_json={"a": [[0] * 2**16] * 3})),
    (CompletionRequest, completion(guided_grammar="a" * (bounds.GRAMMAR_LENGTH + 1))),
    (CompletionRequest, completion(user="a" * MANY)),
    (CompletionRequest, completion(model="a" * MANY)),
    (CompletionRequest, completion(["a"] * MANY)),
    (CompletionRequest, completion([[1]] * MANY)),
    (CompletionRequest, completion([[1], *["a"] * MANY])),
    (CompletionRequest, completion([1, *["a"] * MANY])),
    (CompletionRequest, completion(**{f"unknown_{number}": 1 for number in range(MANY)})),
    (ChatCompletionRequest, {"messages": [{**USER, "role": "x"}] * MANY}),
    (ChatCompletionRequest, {"messages": [USER] * MANY}),
    (ChatCompletionRequest, {"messages": [{**USER, **dict.fromkeys(map(str, range(MANY)), 1)}]}),
    (ChatCompletionRequest, {"messages": [{**USER, "content": [{"type": "text", "text": "x"}] * MANY}]}),
    (ChatCompletionRequest, {"messages": [{**USER, "content": [{"type": "text"}] * MANY}]}),
    (ChatCompletionRequest, {"messages": [USER], "chat_template_kwargs": {"a": [0] * 2**14}}),
    (ChatCompletionRequest, {"messages": [USER], "modalities": ["text"] * MANY}),
    (TokenizeRequest, {"messages": [USER] * MANY}),
    (TokenizeRequest, {"messages": [USER], "chat_template_kwargs": {"a": [0] * 2**14}}),
    (DetokenizeRequest, {"tokens": ["a"] * MANY}),
]


@pytest.mark.parametrize(("model", "body"), WRONG)
def test_validation_ends_with_the_first_error(model: type[Any], body: dict[str, Any]) -> None:
    """What is wrong a thousand times makes one error for each field, not thousands."""
    with pytest.raises(ValidationError) as caught:
        model.model_validate(body)
    assert caught.value.error_count() == 1
    with pytest.raises(RequestValidationError) as told:
        read_body(json.dumps(body).encode(), model)
    assert len(told.value.errors()) == 1


@pytest.mark.parametrize("text", [b'{"a": "\\ud800"}', b'{"a": 1', b"\xff", b"[]]", b"{}{}", b"\xef\xbb\xbf{}"])
def test_what_is_no_json_is_no_request(text: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="the body must"):
        read_body(text, CompletionRequest)


def test_what_is_refused_is_not_spelled_out() -> None:
    """Nobody else runs while Python spells a value: of 4 MiB for 100 ms."""
    part = {"type": ["\u0378" * 7000] * 200}
    body = {"messages": [{"role": "user", "content": [part]}]}
    with pytest.raises(RequestValidationError) as caught:
        read_body(json.dumps(body, ensure_ascii=False).encode(), ChatCompletionRequest)
    assert "content parts of type a list too large to show are not supported" in caught.value.errors()[0]["msg"]


def test_every_list_and_map_of_a_body_has_a_bound_that_clients_can_read() -> None:
    for model in (CompletionRequest, ChatCompletionRequest, TokenizeRequest, DetokenizeRequest):
        for part in parts_of(model.model_json_schema()):
            if part.get("type") == "array":
                assert part["maxItems"] <= bounds.TOKENS, part
            assert part.get("additionalProperties") in (None, False, True) or "maxProperties" in part, part


def parts_of(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        yield schema
    for part in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from parts_of(part)


@pytest.fixture(scope="module")
def llm(pico_engine: Path) -> Iterator[LLM]:
    with LLM(pico_engine, threads=1, kv_cache_memory="16MiB", max_batch_size=2, max_queue_size=3) as llm:
        yield llm


def post(app: FastAPI, path: str, body: dict[str, Any] | bytes) -> httpx.Response:
    """body: as JSON, or JSON as it is."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client:
            return await client.post(path, content=content, headers={"content-type": "application/json"})

    return asyncio.run(ask())


def test_what_can_never_have_a_place_is_refused_before_anything_is_made(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And for what waits nothing is made that only an answer needs."""
    made: list[Any] = []
    monkeypatch.setattr(completions, "ChoiceWriter", lambda *arguments: made.append(arguments))
    monkeypatch.setattr(LLM, "generate_async", lambda *arguments: made.append(arguments))
    app = create_app({"pico": llm})
    refused = post(app, "/v1/completions", completion(["x"] * 6, n=2))
    assert (refused.status_code, made) == (400, [])
    assert "prompt must have at most 5 prompts" in refused.json()["error"]["message"]


def test_large_bodies_are_read_in_a_thread_for_text(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """And find a full pool full."""
    app = create_app({"pico": llm})
    threads: list[str] = []

    def watched(raw: bytes, model: type[Any], ignored: list[str] | None) -> Any:
        threads.append(threading.current_thread().name)
        return read_body(raw, model, ignored)

    monkeypatch.setattr(body_route, "read_body", watched)
    paths = ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"]
    large = {"prompt": 5, "unknown": "y" * SMALL_BODY}
    assert [post(app, path, large).status_code for path in paths] == [400] * 4
    assert all(name.startswith("tensorwright-text") for name in threads)
    assert len(threads) == 4
    assert post(app, "/tokenize", {"prompt": "x"}).status_code == 200
    assert threads[4] == threading.current_thread().name

    async def full(*arguments: Any, **keywords: Any) -> Any:
        raise QueueFullError("too many wait")

    monkeypatch.setattr(app.state.pools.text, "run", full)
    answer = post(app, "/tokenize", large)
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "queue_full")
    assert len(threads) == 5


LARGE, MOST = 100_000, 200_000  # bytes of a body, and of all: five of these beyond 64 KiB each
BOUNDED = ServerOptions(max_body_size=LARGE, max_body_memory=MOST, retry_after=7)


class Door:
    """A BodyGuard with requests of several clients before it, each of which stays inside until it is let go."""

    def __init__(self) -> None:
        self.memory = BodyMemory(BOUNDED)
        self.inside: list[bytes] = []
        self._gate = asyncio.Event()
        self._guard = BodyGuard(self._stay, BOUNDED, self.memory)
        self._tasks: list[asyncio.Task[None]] = []

    async def _stay(self, scope: Any, receive: Any, send: Any) -> None:
        self.inside.append((await receive())["body"])
        await self._gate.wait()

    async def knock(self, address: str, size: int, announced: bool = True, whole: bool = True) -> str | None:
        """What a body of so many bytes is refused with; None if it may come in."""
        answers: list[Any] = []
        half = {"type": "http.request", "body": b"a" * (size // 2), "more_body": True}
        parts = [half, {**half, "body": b"a" * (size - size // 2), "more_body": False}]

        async def receive() -> Any:
            if not parts or (len(parts) == 1 and not whole):
                await self._gate.wait()
                return {"type": "http.disconnect"}
            return parts.pop(0)

        async def send(message: Any) -> None:
            answers.append(message)

        headers = [(b"content-length", str(size).encode())] if announced else [(b"transfer-encoding", b"chunked")]
        scope = {"type": "http", "path": "/x", "headers": headers, "client": (address, 1), "state": {"facts": {}}}
        self._tasks.append(asyncio.create_task(self._guard(scope, receive, send)))
        for _ in range(5):
            await asyncio.sleep(0)
        if not answers:
            return None
        told = json.loads(answers[1]["body"])["error"]
        sent = dict(answers[0]["headers"])
        assert (told["code"], sent[b"retry-after"], sent[b"connection"]) == ("too_many_bodies", b"7", b"close")
        assert "--max-body-memory" in told["message"]
        return f"{answers[0]['status']} {told['type']}"

    async def let_go(self) -> None:
        self._gate.set()
        await asyncio.gather(*self._tasks)


@pytest.mark.parametrize(("announced", "whole"), [(True, True), (True, False), (False, True)])
def test_all_bodies_have_a_bound_together_and_an_address_has_half(announced: bool, whole: bool) -> None:
    """Whether they are still coming or are worked on; those that are announced count before they have come."""

    async def scenario() -> None:
        door = Door()
        knock = partial(door.knock, announced=announced, whole=whole)
        assert [await knock("10.0.0.1", LARGE) for _ in range(2)] == [None] * 2
        assert await knock("10.0.0.1", LARGE) == "429 rate_limit_error"
        assert await knock("10.0.0.1", SMALL_BODY) is None
        assert [await knock("10.0.0.2", LARGE) for _ in range(2)] == [None] * 2
        assert await knock("10.0.0.3", LARGE) is None
        assert await knock("10.0.0.3", LARGE) == "503 service_unavailable_error"
        assert await knock("10.0.0.3", SMALL_BODY) is None
        assert (door.memory.held, door.memory.refused) == (5 * (LARGE - SMALL_BODY), 2)
        assert all(sys.getrefcount(body) <= 3 for body in door.inside)  # the list, the loop and the call: no guard
        await door.let_go()
        assert door.memory.held == 0
        assert len(door.inside) == (7 if whole else 0)

    asyncio.run(scenario())


def test_a_body_counts_until_its_request_runs_in_the_engine(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it waits for a thread too; of what runs then, nobody holds the bytes."""
    app = create_app({"pico": llm}, BOUNDED)
    memory: BodyMemory = app.state.body_memory
    held: dict[str, int] = {}
    raws: list[bytes] = []
    start, stream = LLM.generate_async, completions.EventStream

    def reading(raw: bytes, model: type[Any], ignored: list[str] | None) -> Any:
        raws.append(raw)
        return read_body(raw, model, ignored)

    def starting(*arguments: Any) -> Any:
        held["starting"] = memory.held
        return start(*arguments)

    def streaming(*arguments: Any) -> Any:
        held["streaming"] = memory.held
        held["references"] = sys.getrefcount(raws[-1])
        return stream(*arguments)

    monkeypatch.setattr(body_route, "read_body", reading)
    monkeypatch.setattr(LLM, "generate_async", starting)
    monkeypatch.setattr(completions, "EventStream", streaming)
    body = json.dumps(completion(stream=True)).encode()
    assert post(app, "/v1/completions", body.ljust(LARGE)).status_code == 200
    assert (held["starting"], held["streaming"], memory.held) == (LARGE - SMALL_BODY, 0, 0)
    assert post(app, "/v1/completions", body).status_code == 200
    assert held["references"] <= 2  # the list and the call
    assert "tensorwright_http_body_bytes 0.0" in app.state.exposition.text().decode()
    assert "tensorwright_http_bodies_refused_total 0.0" in app.state.exposition.text().decode()
