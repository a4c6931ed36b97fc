"""The pools of threads: bounded, fair among clients, and seen from outside. No test rests on a clock."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.served import completion
from support.waiting import wait_until
from tensorwright import LLM
from tensorwright.errors import LibraryError, QueueFullError
from tensorwright.runtime.serving.server.app import create_app
from tensorwright.runtime.serving.server.options import ServerOptions
from tensorwright.runtime.serving.server.pools import WorkPool

Scenario = Callable[[WorkPool, threading.Event], Coroutine[Any, Any, None]]


class Time:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def play(scenario: Scenario, threads: int = 1, most_waiting: int | None = 4, clock: Time | None = None) -> None:
    """One pool; whatever waits for the gate goes on at the end."""
    pool = WorkPool("text", threads, most_waiting, clock or Time())
    gate = threading.Event()
    try:
        asyncio.run(scenario(pool, gate))
    finally:
        gate.set()
        pool.close()


async def until(condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(wait_until, condition)


async def occupy(pool: WorkPool, gate: threading.Event, client: str = "slow") -> asyncio.Task[Any]:
    """A job that runs until the gate opens."""
    before = pool.state().running
    task = asyncio.ensure_future(pool.run(gate.wait, client=client))
    await until(lambda: pool.state().running == before + 1)
    return task


async def queue(pool: WorkPool, work: Callable[[], Any], client: str = "") -> asyncio.Task[Any]:
    task = asyncio.ensure_future(pool.run(work, client=client))
    await asyncio.sleep(0)
    return task


def test_a_result_and_an_error_come_back() -> None:
    async def scenario(pool: WorkPool, gate: threading.Event) -> None:
        assert await pool.run(divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await pool.run(divmod, 7, 0)
        await until(lambda: pool.state().running == 0)

    play(scenario)


def test_a_panic_of_a_library_fails_its_request_alone() -> None:
    class Panic(BaseException):
        pass

    def panic() -> None:
        raise Panic("index out of bounds")

    async def scenario(pool: WorkPool, gate: threading.Event) -> None:
        with pytest.raises(LibraryError, match="Panic: index out of bounds"):
            await pool.run(panic)
        assert await pool.run(lambda: 1) == 1

    play(scenario)


def test_a_full_queue_refuses() -> None:
    async def scenario(pool: WorkPool, gate: threading.Event) -> None:
        await occupy(pool, gate)
        waiting = [await queue(pool, lambda: 1) for _ in range(4)]
        with pytest.raises(QueueFullError, match="the queue for text is full with 4 requests"):
            await pool.run(lambda: 1)
        assert (pool.state().waiting, pool.state().refused) == (4, 1)
        gate.set()
        assert await asyncio.gather(*waiting) == [1] * 4

    play(scenario)


def test_a_full_queue_takes_from_who_has_most_of_it() -> None:
    async def scenario(pool: WorkPool, gate: threading.Event) -> None:
        await occupy(pool, gate)
        greedy = [await queue(pool, lambda: "greedy", "greedy") for _ in range(4)]
        polite = [await queue(pool, lambda: "polite", "polite") for _ in range(2)]
        with pytest.raises(QueueFullError):
            await pool.run(lambda: 1, client="greedy")
        gate.set()
        ended = await asyncio.gather(*greedy, *polite, return_exceptions=True)
        assert [end if isinstance(end, str) else type(end) for end in ended] == [
            "greedy", "greedy", QueueFullError, QueueFullError, "polite", "polite",
        ]  # fmt: skip

    play(scenario)


def test_clients_take_turns() -> None:
    """A client that sent many first delays another by one piece of its work, not by all."""
    order: list[str] = []

    async def scenario(pool: WorkPool, gate: threading.Event) -> None:
        await occupy(pool, gate)
        jobs = [await queue(pool, lambda: order.append("many"), "many") for _ in range(3)]
        jobs += [await queue(pool, lambda: order.append("one"), "one")]
        gate.set()
        await asyncio.gather(*jobs)

    play(scenario)
    assert order == ["many", "one", "many", "many"]


def test_a_client_never_has_all_threads() -> None:
    """What it sends beyond its half waits, and runs when its own is done; another's begins at once."""

    async def scenario(pool: WorkPool, gate: threading.Event) -> None:
        first = await occupy(pool, gate, "slow")
        more = [await queue(pool, lambda: "slow", "slow") for _ in range(3)]
        assert await pool.run(lambda: "polite", client="polite") == "polite"
        await until(lambda: pool.state().running == 1)  # a thread may tell its answer before it counts itself free
        assert pool.state().waiting == 3
        gate.set()
        assert await asyncio.gather(first, *more) == [True, "slow", "slow", "slow"]

    play(scenario, threads=2)


def test_work_of_a_request_that_is_gone_never_begins() -> None:
    begun: list[int] = []

    async def scenario(pool: WorkPool, gate: threading.Event) -> None:
        await occupy(pool, gate)
        gone = await queue(pool, lambda: begun.append(1))
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        assert pool.state().waiting == 0
        gate.set()
        await pool.run(lambda: None)

    play(scenario)
    assert begun == []


def test_a_result_that_comes_too_late_is_taken_back() -> None:
    late: list[bool] = []

    async def scenario(pool: WorkPool, gate: threading.Event) -> None:
        task = asyncio.ensure_future(pool.run(gate.wait, late=late.append))
        await until(lambda: pool.state().running == 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert late == []
        gate.set()
        await until(lambda: late == [True])

    play(scenario)


def test_the_age_of_the_oldest_job() -> None:
    clock = Time()

    async def scenario(pool: WorkPool, gate: threading.Event) -> None:
        assert pool.state().oldest == 0
        await occupy(pool, gate, "one")
        clock.now += 5
        await occupy(pool, gate, "other")
        clock.now += 2
        assert pool.state().oldest == 7
        gate.set()
        await until(lambda: pool.state().running == 0)
        assert pool.state().oldest == 0

    play(scenario, threads=2, clock=clock)


@pytest.fixture(scope="module")
def llm(pico_engine: Path) -> Iterator[LLM]:
    with LLM(pico_engine, threads=1, kv_cache_memory="16MiB") as llm:
        yield llm


def test_what_the_server_tells_of_its_pools(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Metrics show a pool's queue; a full one answers 429; one with old work makes the server not ready, by name."""
    app = create_app({"pico": llm}, ServerOptions(max_waiting_jobs=1, max_job_seconds=10, retry_after=7))
    pool, clock, gate = app.state.pools.text, Time(), threading.Event()
    monkeypatch.setattr(pool, "_clock", clock)

    async def scenario(client: httpx.AsyncClient) -> None:
        jobs = [await occupy(pool, gate) for _ in range(pool._share)]
        jobs.append(await queue(pool, gate.wait, "slow"))  # which waits, for its client has its share of the threads
        assert (await client.get("/ready")).status_code == 200
        full = await client.post("/v1/completions", json=completion())
        told = full.json()["error"]
        assert (full.status_code, told["code"], full.headers["retry-after"]) == (429, "queue_full", "7")
        clock.now += 11
        ready = await client.get("/ready")
        assert (ready.status_code, ready.json()["error"]["message"]) == (503, "stuck pools of threads: text")
        metrics = (await client.get("/metrics")).text
        assert 'tensorwright_pool_jobs_waiting{pool="text"} 1.0' in metrics
        assert 'tensorwright_pool_oldest_seconds{pool="text"} 11.0' in metrics
        assert 'tensorwright_pool_refused_total{pool="text"} ' in metrics
        gate.set()
        await asyncio.gather(*jobs)
        await until(lambda: pool.state().running == 0)
        assert (await client.get("/ready")).status_code == 200
        answered = await client.post("/v1/completions", json=completion())
        assert answered.status_code == 200

    async def run() -> None:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            try:
                await scenario(client)
            finally:
                gate.set()

    asyncio.run(run())
