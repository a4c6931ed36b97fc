"""Streams, joined, are the answers that are given at once: texts, logprobs, reasons, usage."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import httpx
import openai
import pytest
from fastapi import FastAPI

from support.snapshots import count_snapshots
from support.toy_engine import ENDLESS
from support.waiting import PATIENCE, wait_until
from tensorwright import LLM, SamplingParams
from tensorwright.errors import NumericalError
from tensorwright.runtime.requests.request_handle import RequestHandle
from tensorwright.runtime.serving.server import request_time
from tensorwright.runtime.serving.server.app import create_app
from tensorwright.runtime.serving.server.options import ServerOptions
from tensorwright.runtime.serving.server.request_time import Deadline

PROMPTS = ["def read_file(", "日本語🙂", "class Node:\n    def __init__("]
SHAPES: list[dict[str, Any]] = [
    {"prompt": PROMPTS[0], "temperature": 0, "max_tokens": 20},
    {"prompt": PROMPTS, "n": 2, "seed": 11, "temperature": 1.5, "max_tokens": 20, "logprobs": 2},
    {"prompt": PROMPTS, "echo": True, "logprobs": 1, "temperature": 0},
    {"prompt": PROMPTS[0], "echo": True, "max_tokens": 0},
    {"prompt": PROMPTS[2], "stop": ["self", "):"], "temperature": 0, "max_tokens": 40, "logprobs": 0},
]


def events_of(url: str, path: str, body: dict[str, Any]) -> list[Any]:
    """Every event as JSON; the raw bytes of each are whole UTF-8."""
    with httpx.stream("POST", f"{url}{path}", json=body, timeout=PATIENCE) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert "content-length" not in answer.headers
        raw = b"".join(answer.iter_raw())
    lines = raw.split(b"\n\n")
    assert lines.pop() == b""
    assert all(line.startswith(b"data: ") for line in lines)
    return [line[6:].decode() if line == b"data: [DONE]" else json.loads(line[6:].decode()) for line in lines]


def joined(chunks: list[Any]) -> dict[int, dict[str, Any]]:
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for piece in chunk["choices"]:
            old = choices.setdefault(piece["index"], {"index": piece["index"], "text": "", "logprobs": None})
            assert old.get("finish_reason") is None, "something came after the end"
            old["text"] += piece["text"]
            old.update({key: piece[key] for key in ("finish_reason", "stop_reason")})
            if piece["logprobs"] is not None:
                whole = old["logprobs"] or {key: [] for key in piece["logprobs"]}
                old["logprobs"] = {key: whole[key] + piece["logprobs"][key] for key in whole}
    return choices


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "-".join(shape))
def test_a_streamed_completion_is_the_whole_one(url: str, shape: dict[str, Any]) -> None:
    body = {"model": "pico", **shape}
    whole = httpx.post(f"{url}/v1/completions", json=body, timeout=PATIENCE).json()
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, last, done = events_of(url, "/v1/completions", {**body, **options})
    assert done == "[DONE]"
    assert joined(chunks) == {choice["index"]: choice for choice in whole["choices"]}
    assert last["choices"] == []
    for usage in (last["usage"], whole["usage"]):
        usage.pop("prompt_tokens_details")  # the second finds the first one's prompt
    assert last["usage"] == whole["usage"]
    assert all(chunk["usage"] is None for chunk in chunks)
    assert len({(chunk["id"], chunk["object"], chunk["system_fingerprint"]) for chunk in [*chunks, last]}) == 1


def test_usage_comes_only_when_asked_for(url: str) -> None:
    *chunks, done = events_of(url, "/v1/completions", {"model": "pico", "prompt": "x", "stream": True})
    assert done == "[DONE]"
    assert not any("usage" in chunk for chunk in chunks)
    assert all(len(chunk["choices"]) == 1 for chunk in chunks)


CHAT = {"messages": [{"role": "user", "content": PROMPTS[0]}]}


@pytest.mark.parametrize(("path", "prompt"), [("completions", {"prompt": PROMPTS[0]}), ("chat/completions", CHAT)])
def test_a_stream_does_not_copy_the_answer_for_each_token(
    url: str, path: str, prompt: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """But only of the whole, for usage, metrics and the log."""
    copies = count_snapshots(monkeypatch)
    options = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": 60, "ignore_eos": True}
    *_, last, done = events_of(url, f"/v1/{path}", {"model": "pico", **prompt, **options})
    assert (done, last["usage"]["completion_tokens"]) == ("[DONE]", 60)
    assert set(copies) == {60}


def test_text_arrives_while_more_is_computed(client: openai.OpenAI, endless_llm: LLM) -> None:
    with client.completions.create(
        model="endless", prompt=PROMPTS[0], stream=True, max_tokens=ENDLESS, extra_body={"ignore_eos": True}
    ) as stream:
        for _ in range(3):
            assert next(stream).choices[0].finish_reason is None
        assert endless_llm.get_stats()["running"] == 1


def test_an_error_in_midstream_is_the_last_event(
    client: openai.OpenAI, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = RequestHandle._on_event

    def fail_soon(handle: RequestHandle, event: Any) -> bool:
        ended = taken(handle, event)
        if len(handle._state.completions[0]._token_ids) < 3:
            return ended
        raise NumericalError("the logits are NaN")

    monkeypatch.setattr(RequestHandle, "_on_event", fail_soon)
    body = {"model": "pico", "prompt": PROMPTS[:1] * 2, "stream": True, "ignore_eos": True, "max_tokens": 200}
    *_, last = events_of(url, "/v1/completions", body)
    error = {"message": "the logits are NaN", "type": "server_error", "param": None, "code": "NumericalError"}
    assert last == {"error": error}
    with pytest.raises(openai.APIError, match="the logits are NaN"):
        list(client.completions.create(model="pico", prompt="x", stream=True, max_tokens=100))
    with pytest.raises(openai.InternalServerError, match="the logits are NaN"):
        client.completions.create(model="pico", prompt=["x", "y"], max_tokens=100)


def ask_in_process(app: FastAPI, body: dict[str, Any]) -> httpx.Response:
    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
            return await client.post("/v1/completions", json=body, timeout=PATIENCE)

    return asyncio.run(ask())


SECONDS = (1, 5, 25)
"""Times of requests that are tried one after the other: on a busy machine a request may not have begun when the first
one is up."""


def wait_until_given_up(app: FastAPI, llm: LLM) -> None:
    """Until nothing is left of a request that was not waited for: a thread that begins it goes on for a moment."""
    wait_until(lambda: not any(pool.state().running for pool in app.state.pools))
    wait_until(lambda: not llm.get_stats()["running"] and not llm.get_stats()["waiting"])


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_whose_time_is_up_ends_with_what_it_has(toy_llm: LLM, stream: bool) -> None:
    body = {"prompt": ["x", "y"], "n": 3, "max_tokens": ENDLESS // 6, "ignore_eos": True, "stream": stream}
    for seconds in SECONDS:
        app = create_app({"toy": toy_llm}, ServerOptions(request_timeout=seconds))
        timed_out = toy_llm.get_stats()["requests_timed_out"]
        answer = ask_in_process(app, {"model": "toy", **body})
        if answer.status_code == 200:
            break
        wait_until_given_up(app, toy_llm)
    assert answer.status_code == 200
    if stream:
        *events, done = answer.text.split("\n\n")[:-1]
        assert done == "data: [DONE]"
        choices = [json.loads(event.removeprefix("data: "))["choices"][0] for event in events]
    else:
        choices = answer.json()["choices"]
    ends = {choice["index"]: choice["finish_reason"] for choice in choices if choice["finish_reason"]}
    assert ends == dict.fromkeys(range(6), "timeout")
    assert toy_llm.get_stats()["requests_timed_out"] == timed_out + 2


@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_does_not_end_a_request_in_time_is_not_waited_for(
    toy_llm: LLM, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[SamplingParams] = []
    monkeypatch.setattr(Deadline, "bound", lambda self, params: begun.append(params) or params)
    monkeypatch.setattr(request_time, "GRACE", 0.0)
    body = {"model": "toy", "prompt": ["x", "y"], "max_tokens": ENDLESS // 2, "ignore_eos": True, "stream": stream}
    for seconds in SECONDS:
        app = create_app({"toy": toy_llm}, ServerOptions(request_timeout=seconds))
        begun.clear()
        aborted = toy_llm.get_stats()["requests_aborted"]
        answer = ask_in_process(app, body)
        if begun and answer.status_code == (200 if stream else 504):
            break
        wait_until_given_up(app, toy_llm)
    assert answer.status_code == (200 if stream else 504)
    last = answer.text.split("\n\n")[-2].removeprefix("data: ") if stream else answer.text
    assert json.loads(last)["error"]["type"] == "timeout_error"
    wait_until(lambda: toy_llm.get_stats()["requests_aborted"] == aborted + 2)


def test_what_is_not_generating_when_its_time_is_up_gets_an_error(llm: LLM) -> None:
    app = create_app({"pico": llm}, ServerOptions(request_timeout=0.2))
    gate = threading.Event()
    text, submitted = app.state.pools.text, llm.get_stats()["requests_aborted"]
    for _ in range(8):  # all threads of the pool
        text._threads.submit(gate.wait)
    try:
        answer = ask_in_process(app, {"model": "pico", "prompt": "x"})
    finally:
        gate.set()
    assert (answer.status_code, answer.json()["error"]["type"]) == (504, "timeout_error")
    assert text.state().waiting == 0
    assert llm.get_stats()["requests_aborted"] == submitted


def test_32_clients_at_once_get_what_each_would_get_alone(url: str, llm: LLM) -> None:
    prompts = [f"def function_{number}(" for number in range(32)]

    async def ask(client: openai.AsyncOpenAI, number: int) -> str:
        body: dict[str, Any] = {"model": "pico", "prompt": prompts[number], "seed": number, "max_tokens": 24}
        if number % 2:
            return (await client.completions.create(**body)).choices[0].text
        stream = await client.completions.create(stream=True, **body)
        return "".join([chunk.choices[0].text async for chunk in stream])

    async def ask_all() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(ask(client, number) for number in range(32)))

    expected = llm.generate(prompts, [SamplingParams(seed=number, max_tokens=24) for number in range(32)])
    assert asyncio.run(ask_all()) == [output.outputs[0].text for output in expected]
