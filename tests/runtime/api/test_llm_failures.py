"""LLM over a fake engine: requests that fail alone, full queues, shutdown, and an engine that dies."""

from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.fake_runtime import A, B, C, FakeEngine, fake_module, ids, write_engine
from support.waiting import PATIENCE, wait_until
from tensorwright.errors import (
    EngineStoppedError,
    LibraryError,
    OutOfMemoryError,
    QueueFullError,
    RequestAbortedError,
)
from tensorwright.runtime.api.llm import LLM
from tensorwright.runtime.engine import native
from tensorwright.runtime.requests import engine_client
from tensorwright.runtime.requests.engine_client import EngineClient
from tensorwright.runtime.requests.sampling_params import SamplingParams


def test_a_request_that_fails_here_ends_alone(llm: LLM, fake: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.gate.clear()
    bad = llm.generate_async(ids(A))
    good = llm.generate_async(ids(B), SamplingParams(max_tokens=2))

    def burst(event: Any, now: float) -> None:
        raise RuntimeError("cannot decode")

    monkeypatch.setattr(bad._state, "apply", burst)
    fake.gate.set()
    with pytest.raises(RuntimeError, match="cannot decode"):
        bad.result(PATIENCE)
    assert good.result(PATIENCE).outputs[0].token_ids == [B, B]
    assert llm.get_stats()["running"] == 0  # aborted in the engine too


Panic = type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})
"""As libraries written in Rust raise it: no Exception."""


def panic(*given: Any, **named: Any) -> Any:
    raise Panic("index out of bounds")


def test_a_panic_of_a_library_ends_its_request_alone(
    llm: LLM, fake: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it comes from the text of a request, from who waits for it, or from who counts requests."""
    fake.gate.clear()
    bad, watched = llm.generate_async(ids(A)), llm.generate_async(ids(B), SamplingParams(max_tokens=2))
    good = llm.generate_async(ids(C), SamplingParams(max_tokens=2))
    monkeypatch.setattr(bad._state, "apply", panic)
    watched._listeners.append(panic)
    llm.add_observer(panic)
    fake.gate.set()
    with pytest.raises(LibraryError, match=r"a library failed.*index out of bounds"):
        bad.result(PATIENCE)
    assert [handle.result(PATIENCE).outputs[0].token_ids for handle in (watched, good)] == [[B, B], [C, C]]
    assert llm.running


def test_the_death_of_the_events_thread_is_told_and_seen(llm: LLM, fake: FakeEngine) -> None:
    fake.gate.clear()
    handle = llm.generate_async(ids(A))
    fake.death = Panic("nobody expects it")  # type: ignore[assignment]
    with pytest.raises(EngineStoppedError, match="the engine stopped: nobody expects it"):
        handle.result(PATIENCE)
    llm._client._thread.join(PATIENCE)
    assert (llm.running, fake.stopped) == (False, True)
    with pytest.raises(EngineStoppedError, match="the engine stopped: nobody expects it"):
        llm.generate_async(ids(A))


def test_an_engine_without_its_events_thread_does_not_run(
    llm: LLM, fake: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Thread(target=lambda: None)
    ended.start()
    ended.join()
    assert llm.running
    monkeypatch.setattr(llm._client, "_thread", ended)
    assert not llm.running


def test_how_long_requests_wait_for_an_event(llm: LLM, fake: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(engine_client, "time", SimpleNamespace(monotonic=lambda: now[0]))
    assert llm.stalled_seconds == 0
    fake.gate.clear()
    handle = llm.generate_async(ids(A), SamplingParams(max_tokens=2))
    now[0] = 107.0
    assert llm.stalled_seconds == llm.get_stats()["stalled_seconds"] == 7
    other = llm.generate_async(ids(A))  # asking for more is no event
    assert llm.stalled_seconds == 7
    fake.budget = 1
    fake.gate.set()
    wait_until(lambda: llm.stalled_seconds == 0)  # a token came
    now[0] = 110.0
    assert llm.stalled_seconds == 3
    fake.steps += 1
    wait_until(lambda: llm.stalled_seconds == 0)  # a step ended, maybe of a long prompt
    now[0] = 112.0
    assert llm.stalled_seconds == 2
    fake.budget = None
    handle.result(PATIENCE)
    other.abort()
    wait_until(lambda: not llm._client._requests)
    now[0] = 200.0
    assert llm.stalled_seconds == 0


def test_a_request_that_fails_in_the_engine_ends_alone(llm: LLM, fake: FakeEngine) -> None:
    fake.gate.clear()
    bad, odd, good = (llm.generate_async(ids(token), SamplingParams(max_tokens=1)) for token in (A, B, C))
    fake.fail_request(bad.request_id, "OutOfMemoryError", "no block left")
    fake.fail_request(odd.request_id, "NewKindOfError", "who knows")
    fake.gate.set()
    with pytest.raises(OutOfMemoryError, match="no block left"):
        bad.result(PATIENCE)
    with pytest.raises(EngineStoppedError, match="NewKindOfError: who knows"):
        odd.result(PATIENCE)
    assert good.result(PATIENCE).outputs[0].token_ids == [C]


def test_a_failure_in_generate_aborts_the_others(llm: LLM, fake: FakeEngine) -> None:
    fake.gate.clear()
    errors: list[Exception] = []

    def run() -> None:
        try:
            llm.generate([ids(A), ids(B)], SamplingParams(max_tokens=50))
        except OutOfMemoryError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: len(fake.submitted) == 2)
    fake.fail_request(min(fake.submitted), "OutOfMemoryError", "none")
    thread.join(PATIENCE)
    assert errors
    assert llm.get_stats()["running"] == 0


def test_a_full_queue_refuses_or_is_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = FakeEngine(max_queue=2)
    monkeypatch.setattr(native, "create_engine", lambda *args: fake)
    monkeypatch.setattr(native, "load_module", fake_module)
    with LLM(write_engine(tmp_path / "engine"), kv_cache_memory="1MiB") as llm:
        fake.gate.clear()
        waiting = [llm.generate_async(ids(A)) for _ in range(2)]
        with pytest.raises(QueueFullError):
            llm.generate_async(ids(A))
        fake.gate.set()
        assert all(handle.result(PATIENCE).finished for handle in waiting)
        assert len(llm.generate([ids(A)] * 9, SamplingParams(max_tokens=3))) == 9


def test_shutdown_ends_what_runs(llm: LLM, fake: FakeEngine) -> None:
    fake.gate.clear()
    handle = llm.generate_async(ids(A))
    llm.shutdown()
    llm.shutdown()
    with pytest.raises(RequestAbortedError, match="shut down"):
        handle.result(PATIENCE)
    with pytest.raises(EngineStoppedError, match="shut down"):
        llm.generate(ids(A))
    with pytest.raises(EngineStoppedError, match="shut down"):
        llm.get_stats()


def test_shutdown_with_drain_lets_requests_finish(llm: LLM) -> None:
    handle = llm.generate_async(ids(A), SamplingParams(max_tokens=20))
    llm.shutdown(drain=True, timeout=PATIENCE)
    assert len(handle.result(PATIENCE).outputs[0].token_ids) == 20


def test_a_dead_engine_tells_everybody_why(llm: LLM, fake: FakeEngine) -> None:
    fake.gate.clear()
    handle = llm.generate_async(ids(A))
    fake.death = EngineStoppedError("the loop met a bus error")
    with pytest.raises(EngineStoppedError, match="bus error"):
        handle.result(PATIENCE)
    with pytest.raises(EngineStoppedError, match="bus error"):
        llm.generate_async(ids(A))


def test_a_dropped_llm_stops_its_engine(fake: FakeEngine, tmp_path: Path) -> None:
    llm = LLM(write_engine(tmp_path / "engine"), kv_cache_memory="1MiB")
    thread = llm._client._thread
    del llm
    gc.collect()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert fake.stopped


def test_nothing_is_closed_again_when_an_llm_that_was_shut_down_is_dropped(
    fake: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[EngineClient] = []
    close = EngineClient.close_dropped

    def noted(client: EngineClient) -> None:
        closed.append(client)  # those of other tests that the collector finds now, too
        close(client)

    monkeypatch.setattr(EngineClient, "close_dropped", noted)
    llm = LLM(write_engine(tmp_path / "engine"), kv_cache_memory="1MiB")
    client, gone = llm._client, weakref.ref(llm)
    llm.shutdown()
    del llm
    gc.collect()
    assert gone() is None
    assert client not in closed


class CollectingLock:
    """A client's lock in which the garbage collector comes, as it may anywhere."""

    def __init__(self, lock: Any):
        self._lock = lock
        self.collected = 0

    def __enter__(self) -> None:
        self._lock.__enter__()
        self.collected += 1
        gc.collect()

    def __exit__(self, *error: Any) -> None:
        self._lock.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock, name)


def test_the_collector_may_close_an_engine_inside_its_own_lock(fake: FakeEngine, tmp_path: Path) -> None:
    """In the events thread, which closing waits for."""
    llm: Any = LLM(write_engine(tmp_path / "engine"), kv_cache_memory="1MiB")
    client = llm._client
    lock = client._room = CollectingLock(client._room)
    fake.gate.clear()
    llm.generate_async(ids(A), SamplingParams(max_tokens=1))
    gc.collect()
    gc.disable()
    try:
        llm.itself = llm  # so that only the collector ends it
        thread = client._thread
        del llm
        fake.gate.set()
        thread.join(PATIENCE)
    finally:
        gc.enable()
    assert lock.collected
    assert not thread.is_alive()
    assert fake.stopped


def test_an_iterator_that_the_collector_ends_takes_no_lock(llm: LLM, fake: FakeEngine) -> None:
    """It ends in any thread and inside any other lock, while the events thread may hold the request's."""
    fake.gate.clear()
    handle = llm.generate_async(ids(A))
    fake.budget = 1
    fake.gate.set()
    iterator = iter(handle)
    next(iterator)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with handle._changed:
            held.set()
            done.wait(PATIENCE)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(PATIENCE)
    leaver = threading.Thread(target=iterator.close)  # type: ignore[attr-defined]
    leaver.start()
    leaver.join(PATIENCE)
    assert not leaver.is_alive()
    done.set()
    holder.join()
    fake.budget = None
    assert handle.result(PATIENCE).outputs[0].finish_reason == "abort"
