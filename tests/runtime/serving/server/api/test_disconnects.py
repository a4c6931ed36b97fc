"""A client that goes away ends its requests: running, waiting or still being tokenized, streamed or not."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from support.toy_engine import ENDLESS
from support.waiting import PATIENCE, wait_until
from tensorwright import LLM, SamplingParams
from tensorwright.runtime.serving.server import responses_api
from tensorwright.runtime.text.tokenizer import Tokenizer

LONG: dict[str, Any] = {"prompt": "def read(", "max_tokens": ENDLESS // 4, "ignore_eos": True}
CHAT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "x"}], "max_tokens": ENDLESS // 4, "ignore_eos": True
}  # fmt: skip


async def leave_when(url: str, path: str, bodies: list[dict[str, Any]], ready: Callable[[], bool]) -> None:
    """Asks all at once, and hangs up as soon as `ready`."""
    async with httpx.AsyncClient(timeout=PATIENCE) as client:
        asking = [asyncio.ensure_future(client.post(f"{url}{path}", json=body)) for body in bodies]
        deadline = time.monotonic() + PATIENCE
        while not ready():
            assert time.monotonic() < deadline
            assert not any(task.done() for task in asking)
            await asyncio.sleep(0.01)
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "shape", "requests", "sequences"),
    [
        ("/v1/completions", LONG, 1, 1),
        ("/v1/completions", {**LONG, "prompt": ["a", "b", "c"]}, 3, 3),
        ("/v1/chat/completions", {**CHAT, "n": 3}, 1, 3),
        ("/v1/responses", {"input": "x", "max_output_tokens": ENDLESS // 4, "ignore_eos": True}, 1, 1),
        ("/v1/messages", CHAT, 1, 1),
    ],
)
def test_running_requests_end(
    url: str, endless_llm: LLM, path: str, shape: dict[str, Any], requests: int, sequences: int, stream: bool
) -> None:
    aborted = endless_llm.get_stats()["requests_aborted"]
    body = {"model": "endless", "stream": stream, **shape}
    asyncio.run(leave_when(url, path, [body], lambda: endless_llm.get_stats()["running"] == sequences))
    wait_until(lambda: endless_llm.get_stats()["requests_aborted"] == aborted + requests)


def running(llm: LLM) -> bool:
    return llm.get_stats()["running"] > 0


def test_a_storm_of_clients_that_leave(url: str, endless_llm: LLM) -> None:
    before = endless_llm.get_stats()["requests_aborted"]
    bodies = [{"model": "endless", "stream": number % 2 == 0, **LONG, "prompt": f"f{number}("} for number in range(32)]
    asyncio.run(leave_when(url, "/v1/completions", bodies, lambda: endless_llm.get_stats()["running"] == 32))
    wait_until(lambda: endless_llm.get_stats()["requests_aborted"] == before + 32)


@pytest.fixture
def occupied(tiny_llm: LLM) -> Iterator[LLM]:
    """Its only place is taken."""
    handle = tiny_llm.generate_async("x", SamplingParams(max_tokens=ENDLESS, ignore_eos=True))
    wait_until(lambda: running(tiny_llm))
    yield tiny_llm
    assert handle.abort(), "it should have been running all the time"


@pytest.mark.parametrize("stream", [False, True])
def test_waiting_requests_end(url: str, occupied: LLM, stream: bool) -> None:
    body = {"model": "some/tiny", "stream": stream, **LONG}
    asyncio.run(leave_when(url, "/v1/completions", [body], lambda: occupied.get_stats()["waiting"] == 1))
    wait_until(lambda: occupied.get_stats()["waiting"] == 0)


@pytest.mark.parametrize("prompts", [["x"], ["x", "y"]])
def test_a_full_queue_is_told_with_a_time_to_come_back(url: str, occupied: LLM, prompts: list[str]) -> None:
    filler = occupied.generate_async("y", SamplingParams(max_tokens=2000))
    wait_until(lambda: occupied.get_stats()["waiting"] == 1)
    answer = httpx.post(f"{url}/v1/completions", json={"model": "some/tiny", "prompt": prompts}, timeout=PATIENCE)
    filler.abort()
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "1"
    assert answer.json()["error"]["code"] == "queue_full"


def test_if_one_prompt_finds_no_place_none_is_worked_on(url: str, occupied: LLM) -> None:
    body = {"model": "some/tiny", **LONG, "prompt": ["a", "b"]}
    assert httpx.post(f"{url}/v1/completions", json=body, timeout=PATIENCE).status_code == 429
    # nothing_left_behind sees that those before it ended


def test_more_prompts_than_there_are_places_are_no_matter_of_time(url: str) -> None:
    body = {"model": "some/tiny", **LONG, "prompt": list("abc")}
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=PATIENCE)
    assert answer.status_code == 400
    assert "prompt must have at most 2 prompts" in answer.json()["error"]["message"]


@pytest.fixture
def slow_tokenizer(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, threading.Event]]:
    """(it has begun, it may go on)"""
    begun, go_on = threading.Event(), threading.Event()
    encode = Tokenizer.encode_within

    def wait_and_encode(self: Tokenizer, *arguments: Any) -> Any:
        begun.set()
        assert go_on.wait(PATIENCE)
        return encode(self, *arguments)

    monkeypatch.setattr(Tokenizer, "encode_within", wait_and_encode)
    yield begun, go_on
    go_on.set()


@pytest.mark.parametrize(("path", "body"), [("/v1/completions", LONG), ("/v1/chat/completions", CHAT)])
def test_tokenizing_holds_nobody_up_and_may_be_left(
    url: str, endless_llm: LLM, slow_tokenizer: Any, path: str, body: dict[str, Any]
) -> None:
    begun, go_on = slow_tokenizer
    before = endless_llm.get_stats()["requests_aborted"]
    asyncio.run(leave_when(url, path, [{"model": "endless", **body}], begun.is_set))
    assert httpx.get(f"{url}/v1/models", timeout=PATIENCE).status_code == 200  # while a thread still waits
    go_on.set()
    wait_until(lambda: endless_llm.get_stats()["requests_aborted"] == before + 1)


def test_a_client_may_leave_before_its_conversation_is_put_together(
    url: str, app: FastAPI, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """That is no failure of the server."""
    begun, go_on = threading.Event(), threading.Event()
    sample = 'tensorwright_http_requests_total{method="POST",path="/v1/responses",status="499"}'

    def left() -> list[str]:
        lines = httpx.get(f"{url}/metrics", timeout=PATIENCE).text.splitlines()
        return [line for line in lines if line.startswith(sample)]

    def wait(*arguments: Any) -> Any:
        begun.set()
        assert go_on.wait(PATIENCE)
        return [], 0

    monkeypatch.setattr(responses_api, "conversation_of", wait)
    before = left()
    asyncio.run(leave_when(url, "/v1/responses", [{"model": "pico", "input": "x"}], begun.is_set))
    wait_until(lambda: left() != before)
    go_on.set()
    wait_until(lambda: all(pool.state().running == 0 for pool in app.state.pools))
    assert "a request failed" not in caplog.text
