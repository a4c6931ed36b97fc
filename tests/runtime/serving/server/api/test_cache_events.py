"""Events of the prefix cache over HTTP, of a server in a process of its own: for keys that have the right to them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.served import Served, completion, serve
from support.waiting import PATIENCE
from tensorwright import LLM, SamplingParams
from tensorwright.errors import QueueFullError, TemporarilyUnavailableError
from tensorwright.runtime.requests.cache_events import CacheEvent, CacheEvents
from tensorwright.runtime.serving.server.app import create_app
from tensorwright.runtime.serving.server.cache_events import MAX_STREAMS, CountedStream
from tensorwright.runtime.serving.server.event_readers import EventReaders
from tensorwright.runtime.serving.server.options import ServerOptions

PATH = "/v1/cache_events"
BLOCK = 32
"""The tokens of a block of the toy engine."""
KEYS = {"all": "cache_events=tokens", "names": "cache_events=hashes", "none": ""}


@pytest.fixture(scope="module")
def server(toy_engine: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("events")
    keys = folder / "keys"
    keys.write_text("".join(f"{key} {rights}\n" for key, rights in KEYS.items()))
    options = ("--api-key-file", str(keys), "--cache-events", "1000", "--max-batch-size", "2")
    with serve(toy_engine, folder, *options) as served:
        yield served


def headers(key: str) -> dict[str, str]:
    return {"x-api-key": key}


def ask(server: Served, text: str, key: str) -> None:
    body = completion(text, 2)
    server.client.post("/v1/completions", json=body, headers=headers(key)).raise_for_status()


def read(server: Served, key: str = "all", **query: Any) -> dict[str, Any]:
    answer = server.client.get(PATH, params=query, headers=headers(key))
    found: dict[str, Any] = answer.raise_for_status().json()
    return found


def apply(events: list[dict[str, Any]], content: dict[str, dict[str, Any]]) -> None:
    for event in events:
        if event["type"] == "cleared":
            content.clear()
        elif event["type"] == "stored":
            content[event["block"]] = event
        else:
            content.pop(event["block"], None)


def read_all(server: Served, after: str | None = None, **query: Any) -> tuple[dict[str, dict[str, Any]], str]:
    content: dict[str, dict[str, Any]] = {}
    more = True
    while more:
        found = read(server, **query, **({} if after is None else {"after": after}))
        assert found["lost"] == 0
        apply(found["data"], content)
        after, more = found["next"], found["more"]
    assert after is not None
    return content, after


def streamed(server: Served, count: int, **query: Any) -> list[dict[str, str]]:
    """The first events of a stream, each with its fields."""
    found: list[dict[str, str]] = [{}]
    with server.client.stream("GET", PATH, params={"stream": "true", **query}, headers=headers("all")) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            if not line:
                if len(found) == count:
                    return found
                found.append({})
                continue
            name, _, value = line.partition(": ")
            found[-1][name] = value
    raise AssertionError("the stream has ended")


def test_events_are_polled_and_replayed(server: Served) -> None:
    _, after = read_all(server)
    for number in range(4):
        ask(server, f"{number} is a number " * 4, "none")
    news = read(server, after=after)
    assert (news["object"], news["lost"], news["more"]) == ("list", 0, False)
    content, last = read_all(server, limit=2)
    before: dict[str, dict[str, Any]] = {}
    apply(news["data"], before)
    assert before.keys() <= content.keys()
    body = {"model": "pico", "prompt": "0 is a number " * 4}
    tokens = server.client.post("/tokenize", json=body, headers=headers("all")).json()["tokens"]
    assert any(event["token_ids"] == tokens[:BLOCK] for event in before.values())
    assert read(server, after=last)["data"] == []


def test_a_stream_tells_all_and_goes_on_where_it_ended(server: Served) -> None:
    _, first = read_all(server)
    ask(server, "something to begin with " * 3, "none")
    content, last = read_all(server)
    events = streamed(server, len(content) + 1)
    assert [event["event"] for event in events] == ["cleared", *["stored"] * len(content)]
    assert {json.loads(event["data"]).get("block") for event in events[1:]} == content.keys()
    ask(server, "and one thing more of at least a block", "none")
    [event] = streamed(server, 1, after=last)
    assert event["event"] == "stored"
    assert event["id"] != last
    for before in ({}, {"after": first}):  # a browser comes again with the address that it had at first
        with server.client.stream(
            "GET", PATH, params={"stream": "true", **before}, headers={**headers("all"), "last-event-id": last}
        ) as answer:
            assert next(answer.iter_lines()) == f"id: {event['id']}"


def test_keys_read_what_they_may(server: Served) -> None:
    ask(server, "of somebody who may read nothing " * 2, "none")
    answer = server.client.get(PATH, headers=headers("none"))
    assert answer.status_code == 403
    assert "cache_events=hashes" in answer.json()["error"]["message"]
    named = [event for event in read(server, "names")["data"] if event["type"] == "stored"]
    told = [event for event in read(server, "all")["data"] if event["type"] == "stored"]
    assert named
    assert [{**event, "token_ids": None} for event in named] == [{**event, "token_ids": None} for event in told]
    assert not any("token_ids" in event for event in named)
    assert all(event["token_ids"] and event["salt"] for event in told)
    salts = {event["salt"] for event in told}
    ask(server, "of another key " * 4, "names")
    assert len({event["salt"] for event in read(server)["data"] if event["type"] == "stored"}) == len(salts) + 1


@pytest.mark.parametrize(
    ("query", "status"),
    [({"after": "x"}, 400), ({"limit": 0}, 400), ({"limit": 1001}, 400), ({"wait": 31}, 400), ({"model": "?"}, 404),
     ({"stream": "true", "after": "x"}, 400)],
)  # fmt: skip
def test_what_is_no_question_is_refused(server: Served, query: dict[str, Any], status: int) -> None:
    assert server.client.get(PATH, params=query, headers=headers("all")).status_code == status


def test_a_stream_beyond_the_most_is_refused_until_another_ends() -> None:
    readers = EventReaders()
    readers.open = MAX_STREAMS
    with pytest.raises(QueueFullError, match=f"{MAX_STREAMS} clients read events as streams"):
        CountedStream(nothing(), readers)
    readers.open -= 1
    stream, sent = CountedStream(nothing(), readers), []

    async def send(message: Any) -> None:
        sent.append((message["type"], readers.open))

    asyncio.run(stream({"type": "http", "path": PATH, "app": None}, asyncio.Event().wait, send))  # type: ignore[arg-type]
    assert sent[0] == ("http.response.start", MAX_STREAMS)
    assert readers.open == MAX_STREAMS - 1


class Looks:
    """Readings of an engine in which an event comes, or an error, when a test says so."""

    def __init__(self) -> None:
        self.began = 0
        self.gate = asyncio.Event()
        self.error: Exception | None = None

    async def __call__(self) -> CacheEvents:
        self.began += 1
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return CacheEvents((CacheEvent("removed", 1),), "next", 0, False)


def test_who_waits_at_one_place_waits_for_one_reading() -> None:
    async def scenario() -> None:
        readers, looks, elsewhere = EventReaders(), Looks(), Looks()

        def wait(place: str, timeout: float = PATIENCE) -> asyncio.Task[CacheEvents | None]:
            chosen = looks if place == "end" else elsewhere
            return asyncio.create_task(readers.next(place, chosen, lambda: False, timeout))

        waiting = [wait("end") for _ in range(5)]
        other = wait("before")
        assert await wait("end", timeout=0) is None
        assert (looks.began, elsewhere.began) == (1, 1)
        waiting.pop(0).cancel()  # who began it goes, and the others hear all the same
        looks.gate.set()
        [first, *same] = await asyncio.gather(*waiting)
        assert first is not None
        assert all(found is first for found in same)
        assert not other.done()
        other.cancel()
        await asyncio.wait({other})
        # All have gone, so a new one looks anew. An error is told to each who waits.
        looks.error = TemporarilyUnavailableError("later")
        failing = await asyncio.gather(wait("end"), wait("end"), return_exceptions=True)
        assert [type(error) for error in failing] == [TemporarilyUnavailableError] * 2
        assert (looks.began, elsewhere.began) == (2, 1)

    asyncio.run(scenario())


def test_who_waits_is_let_go_when_the_server_drains() -> None:
    async def look() -> CacheEvents:
        return CacheEvents((), "end", 0, False)

    async def scenario() -> CacheEvents | None:
        return await EventReaders().next("end", look, lambda: True, PATIENCE)

    assert asyncio.run(scenario()) == CacheEvents((), "end", 0, False)


async def nothing() -> AsyncIterator[str]:
    for text in ():
        yield text


def test_without_keys_nobody_is_told_tokens(toy_engine: Path) -> None:
    with LLM(toy_engine, threads=1, kv_cache_memory="1MiB", cache_events=100) as llm:
        llm.generate("of at least one block of thirty-two tokens", SamplingParams(max_tokens=1))
        app = create_app({"pico": llm}, ServerOptions())

        async def send() -> httpx.Response:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
                return await client.get(PATH, params={"wait": 1}, timeout=PATIENCE)

        cleared, stored = asyncio.run(send()).json()["data"]
    assert (cleared["type"], stored["type"], stored["tier"]) == ("cleared", "stored", "cache")
    assert "token_ids" not in stored
