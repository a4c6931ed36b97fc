"""Keys with values behind them, and the tokens that a key may have in a minute."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.served import completion
from tensorwright.durations import format_duration, parse_duration
from tensorwright.errors import InvalidOptionError, RateLimitError
from tensorwright.runtime.api.llm import LLM
from tensorwright.runtime.commands.serve import read_keys
from tensorwright.runtime.serving.server.api_keys import ApiKey, parse_key, parse_keys
from tensorwright.runtime.serving.server.app import create_app
from tensorwright.runtime.serving.server.options import ServerOptions
from tensorwright.runtime.serving.server.rate_limits import HEADERS, RateLimits, TokenBucket


def test_a_key_is_read_with_its_values(tmp_path: Path) -> None:
    assert parse_key("sk-1", "x") == ApiKey("sk-1")
    text = "sk-1  weight=0.5 priority=-2 tokens_per_minute=600"
    assert parse_key(text, "x") == ApiKey("sk-1", 0.5, -2, 600)
    file = tmp_path / "keys"
    file.write_text(f"# the teams\n{text}\n\nsk-2\n")
    assert read_keys(str(file)) == (text, "sk-2")
    assert [key.key for key in parse_keys((text, "sk-2", text))] == ["sk-1", "sk-2", "sk-1"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "a key must be one or more"),
        ("secret-ä", "a key must be one or more"),
        ("secret two", "word 1 behind it is neither"),
        ("secret weight", "weight, priority, tokens_per_minute, pinned_prefixes, cache_events; word 1"),
        ("secret wait=1", "word 1 behind it is neither"),
        ("secret weight=0", "weight must be a number from 0.001 to 1000, got '0'"),
        ("secret weight=nan", "weight must be"),
        ("secret priority=1.5", "priority must be a 32-bit integer"),
        ("secret tokens_per_minute=0", "tokens_per_minute must be a positive 32-bit integer"),
        ("secret weight=1 weight=2", "weight must be given once"),
        ("secret cache_events=all", "cache_events must be hashes or tokens, got 'all'"),
    ],
)
def test_a_wrong_key_is_refused_and_not_shown(text: str, words: str) -> None:
    with pytest.raises(InvalidOptionError, match=words) as raised:
        ServerOptions(api_keys=(text,))
    assert "secret" not in str(raised.value)


def test_a_key_that_is_given_twice_is_given_alike() -> None:
    with pytest.raises(InvalidOptionError, match="given twice"):
        ServerOptions(api_keys=("a weight=1", "a weight=2"))


def test_a_bucket_gives_no_more_than_its_rate_over_time() -> None:
    now = [0.0]
    bucket = TokenBucket(600, lambda: now[0])
    bucket.enter(500)
    with pytest.raises(RateLimitError, match="600 tokens a minute") as raised:
        bucket.enter(200)
    assert raised.value.retry_after == pytest.approx(10.0)  # 100 more, of which 10 come in a second
    now[0] += 10
    bucket.enter(200)
    bucket.take(1200)  # a prompt that nobody could foresee
    assert bucket.headers() == dict(zip(HEADERS, ("600", "0", "3m0s"), strict=True))
    now[0] += 120
    with pytest.raises(RateLimitError) as raised:
        bucket.enter(0)
    assert 0 < raised.value.retry_after <= 0.1 + 1e-6
    now[0] += 0.1
    bucket.enter(0)
    now[0] += 3600
    assert bucket.left == 600  # a key saves up no more than a minute
    bucket.enter(10**6)  # as many as it has; the rest is a debt
    assert bucket.left == 600 - 10**6
    assert bucket.refused == 2


def test_only_keys_with_a_bound_have_a_bucket() -> None:
    limits = RateLimits(parse_keys(("a", "b tokens_per_minute=5")))
    assert [number for number, _ in limits.items()] == [2]
    assert limits.of({"state": {"key": 1}}) is None
    assert limits.of({"state": {}}) is None
    assert not RateLimits(parse_keys(("a",)))


def test_a_key_beyond_its_tokens_is_answered_429(toy_engine: Path) -> None:
    options = ServerOptions(api_keys=("few tokens_per_minute=30", "many"))

    async def run(app: Any) -> None:
        for _, bucket in app.state.rates.items():  # which fill up no further, however long this takes
            bucket._clock = partial(getattr, bucket, "_at")
        base = {"transport": httpx.ASGITransport(app), "base_url": "http://here", "timeout": 60}
        async with httpx.AsyncClient(**base) as client:

            async def ask(key: str, **fields: Any) -> httpx.Response:
                body = completion([5, 6, 7], **fields)
                return await client.post("/v1/completions", json=body, headers={"authorization": f"Bearer {key}"})

            first = await ask("few", max_tokens=7)
            assert first.status_code == 200
            assert first.headers[HEADERS[0]] == "30"
            # The headers leave before the end: 3 of the prompt and 7 of the answer are taken by then.
            assert 20 <= int(first.headers["x-ratelimit-remaining-tokens"]) <= 21
            wrong = await ask("few", max_tokens=7, top_p=3)
            assert wrong.status_code == 400
            assert int(wrong.headers["x-ratelimit-remaining-tokens"]) >= 20
            streamed = await ask("few", max_tokens=8, stream=True)
            assert streamed.status_code == 200
            refused = await ask("few", max_tokens=20)
            told = refused.json()["error"]
            assert (refused.status_code, told["type"], told["code"]) == (429, "tokens", "rate_limit_exceeded")
            assert int(refused.headers["retry-after"]) >= 5
            assert HEADERS[1] in refused.headers
            assert (await client.get("/v1/models", headers={"authorization": "Bearer few"})).status_code == 200
            other = await ask("many", max_tokens=20)
            assert other.status_code == 200
            assert HEADERS[0] not in other.headers
            text = (await client.get("/metrics")).text
            assert 'tensorwright_http_key_tokens_total{key="1"} 21.0' in text  # 3 + 7, 3 + 8
            assert 'tensorwright_http_key_limited_total{key="1"} 1.0' in text

    with LLM(toy_engine, threads=1, kv_cache_memory="16MiB") as llm:
        asyncio.run(run(create_app({"pico": llm}, options)))


def test_durations_are_read_and_written() -> None:
    read = {"50ms": 0.05, "1.5 s": 1.5, "2min": 120.0, ".5h": 1800.0, "3": 3.0, "7us": 7e-6}
    assert {text: parse_duration(text, "x") for text in read} == pytest.approx(read)
    assert parse_duration(2, "x") == 2.0
    for wrong in ("", "0", "-1s", "5 days", "nan", "1e400", None, True, float("inf"), 0):
        with pytest.raises(InvalidOptionError, match='x must be a positive number of seconds or a text like "50ms"'):
            parse_duration(wrong, "x")
    shown = {0: "0ms", 0.0204: "21ms", 1: "1s", 61.25: "1m1.25s", 7200: "2h0m0s"}
    assert {seconds: format_duration(seconds) for seconds in shown} == shown
