"""The application without a network: faults of handlers, and engines that stopped."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, FastAPI
from fastapi.responses import StreamingResponse

from support.fake_runtime import FakeEngine, fake_module, write_engine
from support.served import completion
from support.toy_engine import ENDLESS
from support.waiting import PATIENCE
from tensorwright import LLM
from tensorwright.errors import EngineError, EngineStoppedError, InvalidOptionError, NumericalError
from tensorwright.runtime.engine import native
from tensorwright.runtime.requests import engine_client
from tensorwright.runtime.serving.server.app import create_app
from tensorwright.runtime.serving.server.event_stream import EventStream
from tensorwright.runtime.serving.server.options import ServerOptions

faulty = APIRouter()


@faulty.get("/fault")
async def fault() -> None:
    raise RuntimeError("the secret inside")


@faulty.get("/numbers")
async def numbers() -> None:
    raise NumericalError("logits are NaN")


@faulty.get("/files")
async def files() -> None:
    raise EngineError("/srv/engines/pico/config.json: altered")


@faulty.get("/half")
async def half() -> StreamingResponse:
    async def parts() -> Any:
        yield b"a"
        raise RuntimeError("the secret inside")

    return StreamingResponse(parts())


@pytest.fixture(scope="module")
def llm(pico_engine: Path) -> Iterator[LLM]:
    with LLM(pico_engine, threads=1, kv_cache_memory="16MiB") as llm:
        yield llm


def call(app: FastAPI, method: str, path: str, **keywords: Any) -> httpx.Response:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            return await client.request(method, path, **keywords)

    return asyncio.run(ask())


def test_a_fault_shows_nothing_but_its_id(llm: LLM, caplog: pytest.LogCaptureFixture) -> None:
    app = create_app({"pico": llm}, routers=[faulty])
    with caplog.at_level(logging.INFO, "tensorwright.server"):
        answer = call(app, "GET", "/fault", headers={"x-request-id": "abc"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
    assert answer.headers["x-request-id"] == "abc"
    assert "secret" not in answer.text
    failed = [record for record in caplog.records if record.exc_info and record.name == "tensorwright.server"]
    assert [record.facts for record in failed] == [{"request_id": "abc"}]  # type: ignore[attr-defined]
    told = call(app, "GET", "/numbers").json()["error"]
    assert (told["code"], told["message"]) == ("NumericalError", "logits are NaN")
    caplog.clear()
    told = call(app, "GET", "/files").json()["error"]
    assert (told["code"], told["message"]) == ("EngineError", "the server failed; its log says why")
    assert "/srv/engines/pico" in caplog.text


def test_an_answer_that_fails_half_way_is_not_ended_as_if_whole(llm: LLM) -> None:
    with pytest.raises(RuntimeError, match="secret"):  # for uvicorn, which cuts the connection
        call(create_app({"pico": llm}, routers=[faulty]), "GET", "/half")


def test_a_stream_that_cannot_be_sent_is_a_fault_that_is_told() -> None:
    async def events() -> AsyncIterator[str]:
        yield "{}"

    async def stay() -> dict[str, str]:
        await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def fail(message: Any) -> None:
        raise RuntimeError("no such message")

    with pytest.raises(RuntimeError, match="no such message"):
        asyncio.run(EventStream(events(), [])({"type": "http"}, stay, fail))  # type: ignore[arg-type]


def test_a_stopped_engine_is_not_ready(pico_engine: Path) -> None:
    llm = LLM(pico_engine, threads=1, kv_cache_memory="16MiB")
    app = create_app({"pico": llm})
    assert call(app, "GET", "/ready").status_code == 200
    llm.shutdown()
    ready = call(app, "GET", "/ready")
    assert (ready.status_code, ready.json()["error"]["message"]) == (503, "stopped engines: pico")
    assert call(app, "GET", "/health").status_code == 200
    assert 'tensorwright_engine_up{model="pico"} 0.0' in call(app, "GET", "/metrics").text
    refused = call(app, "POST", "/v1/completions", json=completion())
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_stopped")
    assert refused.headers["retry-after"] == "1"


def test_health_says_that_an_engine_is_in_trouble(toy_engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What LLM calls trouble: tests/runtime/requests/test_watchdog.py."""
    with LLM(toy_engine, threads=1, kv_cache_memory="16MiB") as llm:
        app = create_app({"pico": llm})
        with monkeypatch.context() as during:
            during.setattr(LLM, "trouble", "no step has ended for 400 s")
            health, ready = call(app, "GET", "/health"), call(app, "GET", "/ready")
            assert (health.status_code, health.json()["error"]["code"]) == (503, "engine_in_trouble")
            assert health.json()["error"]["message"] == "pico: no step has ended for 400 s"
            assert (ready.status_code, ready.json()["error"]["message"]) == (503, "pico: no step has ended for 400 s")
        assert (call(app, "GET", "/health").status_code, call(app, "GET", "/ready").status_code) == (200, 200)


TROUBLES = ["a violated invariant", "no events thread", "a stalled engine"]


@pytest.mark.parametrize("trouble", TROUBLES)
def test_an_engine_in_trouble_is_not_ready(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, trouble: str) -> None:
    fake, now = FakeEngine(), [100.0]
    monkeypatch.setattr(native, "create_engine", lambda *given: fake)
    monkeypatch.setattr(native, "load_module", fake_module)
    monkeypatch.setattr(engine_client, "time", SimpleNamespace(monotonic=lambda: now[0]))
    fake.gate.clear()
    with LLM(write_engine(tmp_path / "engine"), kv_cache_memory="1MiB") as llm:
        app = create_app({"pico": llm}, ServerOptions(max_stall_seconds=10))
        handle = llm.generate_async("x")
        now[0] += 10
        assert call(app, "GET", "/ready").status_code == 200
        if trouble == "a violated invariant":
            fake.violations, fake.cause, fake.stopped = 1, "found a block of nobody", True
        elif trouble == "no events thread":
            fake.death = RuntimeError("/dev/nvidia0 is gone")
            with pytest.raises(EngineStoppedError, match="nvidia0"):
                handle.result(PATIENCE)
        else:
            now[0] += 1
        ready = call(app, "GET", "/ready")
        kind = "stalled" if trouble == "a stalled engine" else "stopped"
        assert (ready.status_code, ready.json()["error"]["message"]) == (503, f"{kind} engines: pico")
        metrics = call(app, "GET", "/metrics").text
        assert f'tensorwright_engine_up{{model="pico"}} {float(kind == "stalled")}' in metrics
        if trouble == "a violated invariant":
            assert 'tensorwright_invariant_violations_total{model="pico"} 1.0' in metrics
        if trouble == "no events thread":
            refused = call(app, "POST", "/v1/completions", json=completion())
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_stopped")
            assert "nvidia0" not in refused.text


@pytest.mark.parametrize("greed", [{"prompt": [1]}, {"prompt": [[1], [2], [3]]}, {"prompt": [1], "n": 3}])
def test_a_polite_key_is_served_beside_one_that_takes_all_it_may(toy_engine: Path, greed: dict[str, Any]) -> None:
    """The greedy one asks for more than engine and queue hold, and keeps what it gets; a row of the batch is left."""
    options = ServerOptions(api_keys=("greedy", "polite"), max_requests_per_key=3)

    async def run(app: FastAPI) -> httpx.Response:
        base = {"transport": httpx.ASGITransport(app), "base_url": "http://here", "timeout": 60}
        async with httpx.AsyncClient(**base) as client:

            def ask(key: str, **fields: Any) -> Awaitable[httpx.Response]:
                body = completion(**fields)
                return client.post("/v1/completions", json=body, headers={"authorization": f"Bearer {key}"})

            asked = [asyncio.ensure_future(ask("greedy", max_tokens=ENDLESS // 2, **greed)) for _ in range(12)]
            held = 3 if greed == {"prompt": [1]} else 1
            while sum(not task.done() for task in asked) > held:
                await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            for refused in (task.result() for task in asked if task.done()):
                assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
                assert refused.json()["error"]["code"] == "too_many_requests"
            polite = await ask("polite", max_tokens=2)
            assert sum(not task.done() for task in asked) == held, "the greedy one ended too soon to test anything"
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
            assert dict(app.state.shares.of_keys()) == {}
            return polite

    with LLM(toy_engine, threads=1, kv_cache_memory="128MiB", max_batch_size=4, max_queue_size=4) as llm:
        app = create_app({"pico": llm}, options)
        assert asyncio.run(run(app)).status_code == 200
        by_itself = create_app({"pico": llm}, ServerOptions(api_keys=("a", "b"))).state.shares
        alone = create_app({"pico": llm}, ServerOptions(api_keys=("a", "a"))).state.shares
        assert (by_itself.per_key, alone.per_key, alone.per_address) == (4, None, None)


def test_there_must_be_an_engine() -> None:
    with pytest.raises(InvalidOptionError, match="at least one engine"):
        create_app({})
