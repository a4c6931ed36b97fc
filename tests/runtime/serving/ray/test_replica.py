"""A replica without Ray around it: what it answers, what it refuses, and that nothing is left of whoever leaves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.ray_cluster import SMALL
from support.toy_engine import ENDLESS
from support.waiting import PATIENCE, wait_until
from tensorwright import LLM, SamplingParams
from tensorwright.errors import EngineStoppedError, RequestAbortedError
from tensorwright.runtime.serving.ray.replica import EngineReplica
from tensorwright.runtime.serving.ray.wire import RemoteRequest, ReplicaNews


@pytest.fixture
def replica(toy_engine: Path) -> Iterator[EngineReplica]:
    made = EngineReplica(str(toy_engine), SMALL, max_stall_seconds=60, form="form")
    yield made
    made._llm.shutdown()


def request(count: int = 5, **more: Any) -> RemoteRequest:
    return RemoteRequest([1, 2, 3], SamplingParams(max_tokens=count, ignore_eos=True, temperature=0), **more)


async def answer(replica: EngineReplica, sent: RemoteRequest) -> list[ReplicaNews]:
    return [news async for news in replica.generate(sent)]


def running(replica: EngineReplica) -> int:
    return int(replica._llm.get_stats()["running"])


def test_it_gives_the_tokens_of_its_engine(replica: EngineReplica, toy_llm: LLM) -> None:
    found = asyncio.run(answer(replica, request()))
    tokens = [token for news in found for event in news.events for token in event.tokens]
    assert tokens == toy_llm.generate({"prompt_token_ids": [1, 2, 3]}, request().params).outputs[0].token_ids
    assert found[-1].events[-1].finish == "length"
    facts = asyncio.run(replica.facts())
    assert {news.engine for news in found} == {facts.engine}
    assert (facts.digest, facts.form) == (toy_llm.engine.digest, "form")


def test_it_goes_on_only_with_its_own_tokens(replica: EngineReplica) -> None:
    own = asyncio.run(replica.facts()).engine
    assert asyncio.run(answer(replica, request(engine=own)))[-1].events[-1].finish == "length"
    ((news,),) = [news.events for news in asyncio.run(answer(replica, request(engine="other")))]
    assert (news.finish, news.error_type) == ("error", "ReplicaLostError")


def test_an_error_of_the_request_is_an_event(replica: EngineReplica) -> None:
    ((news,),) = [news.events for news in asyncio.run(answer(replica, request(2**30)))]
    assert (news.finish, news.error_type) == ("error", "PromptTooLongError")


def test_an_engine_that_stops_is_no_error_of_the_request(replica: EngineReplica) -> None:
    async def run() -> None:
        answering = asyncio.ensure_future(answer(replica, request(ENDLESS)))
        await asyncio.to_thread(wait_until, lambda: running(replica) == 1)
        await asyncio.to_thread(replica._llm.shutdown)
        with pytest.raises(RequestAbortedError):
            await answering
        with pytest.raises(EngineStoppedError):
            await answer(replica, request())
        with pytest.raises(EngineStoppedError, match="the engine stopped"):
            await replica.check_health()

    asyncio.run(replica.check_health())
    asyncio.run(run())


def test_a_stalled_engine_is_not_healthy(replica: EngineReplica, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LLM, "stalled_seconds", 61.0)
    with pytest.raises(EngineStoppedError, match="no step of the engine has ended for 61 seconds"):
        asyncio.run(replica.check_health())


def test_it_reports_its_load(replica: EngineReplica) -> None:
    async def run() -> None:
        before = await replica.record_routing_stats()
        assert (before["requests"], before["kv_usage"]) == (0.0, 0.0)
        async for _ in replica.generate(request(ENDLESS, sender="s", queued=7)):
            routing, scaling = await replica.record_routing_stats(), await replica.record_autoscaling_stats()
            break
        assert routing["requests"] == 1.0
        assert routing["places"] == 64.0
        assert 0 < routing["kv_usage"] < 1
        assert routing["stats"]["running"] == 1
        assert scaling["queued"] == 7.0
        assert set(replica.record_replica_metadata()) == {"engine"}

    asyncio.run(run())


def test_whoever_leaves_ends_the_request(replica: EngineReplica) -> None:
    async def run() -> None:
        answering = replica.generate(request(ENDLESS))
        await anext(answering)
        await answering.aclose()

    asyncio.run(run())
    wait_until(lambda: running(replica) == 0)


def test_whoever_leaves_while_the_request_starts_ends_it_too(
    replica: EngineReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on, started = threading.Event(), threading.Event(), []
    start = replica._start

    def slowly(sent: RemoteRequest) -> Any:
        begun.set()
        assert go_on.wait(PATIENCE)
        started.append(start(sent))
        return started[0]

    monkeypatch.setattr(replica, "_start", slowly)

    async def run() -> None:
        leaving = asyncio.ensure_future(answer(replica, request(ENDLESS)))
        await asyncio.to_thread(begun.wait)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        go_on.set()
        await asyncio.to_thread(wait_until, lambda: started and started[0].done)

    asyncio.run(run())
    assert started[0].result().outputs[0].finish_reason == "abort"
