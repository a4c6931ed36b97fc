"""LLM over a fake engine: requests that fail alone, full queues, shutdown, and an engine that dies."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import pytest

from support.fake_runtime import A, B, C, FakeEngine, fake_module, ids, wait_until, write_engine
from tensorwright.errors import EngineStoppedError, OutOfMemoryError, QueueFullError, RequestAbortedError
from tensorwright.runtime import native
from tensorwright.runtime.llm import LLM
from tensorwright.runtime.sampling_params import SamplingParams


def test_a_request_that_fails_here_ends_alone(llm: LLM, fake: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.gate.clear()
    bad = llm.generate_async(ids(A))
    good = llm.generate_async(ids(B), SamplingParams(max_tokens=2))

    def burst(event: Any, now: float) -> None:
        raise RuntimeError("cannot decode")

    monkeypatch.setattr(bad._state, "apply", burst)
    fake.gate.set()
    with pytest.raises(RuntimeError, match="cannot decode"):
        bad.result(5)
    assert good.result(5).outputs[0].token_ids == [B, B]
    assert llm.get_stats()["running"] == 0  # aborted in the engine too


def test_a_request_that_fails_in_the_engine_ends_alone(llm: LLM, fake: FakeEngine) -> None:
    fake.gate.clear()
    bad, odd, good = (llm.generate_async(ids(token), SamplingParams(max_tokens=1)) for token in (A, B, C))
    fake.fail_request(bad.request_id, "OutOfMemoryError", "no block left")
    fake.fail_request(odd.request_id, "NewKindOfError", "who knows")
    fake.gate.set()
    with pytest.raises(OutOfMemoryError, match="no block left"):
        bad.result(5)
    with pytest.raises(EngineStoppedError, match="NewKindOfError: who knows"):
        odd.result(5)
    assert good.result(5).outputs[0].token_ids == [C]


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
    thread.join(5)
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
        assert all(handle.result(5).finished for handle in waiting)
        assert len(llm.generate([ids(A)] * 9, SamplingParams(max_tokens=3))) == 9


def test_shutdown_ends_what_runs(llm: LLM, fake: FakeEngine) -> None:
    fake.gate.clear()
    handle = llm.generate_async(ids(A))
    llm.shutdown()
    llm.shutdown()
    with pytest.raises(RequestAbortedError, match="shut down"):
        handle.result(5)
    with pytest.raises(EngineStoppedError, match="shut down"):
        llm.generate(ids(A))
    with pytest.raises(EngineStoppedError, match="shut down"):
        llm.get_stats()


def test_shutdown_with_drain_lets_requests_finish(llm: LLM) -> None:
    handle = llm.generate_async(ids(A), SamplingParams(max_tokens=20))
    llm.shutdown(drain=True, timeout=5)
    assert len(handle.result(5).outputs[0].token_ids) == 20


def test_a_dead_engine_tells_everybody_why(llm: LLM, fake: FakeEngine) -> None:
    fake.gate.clear()
    handle = llm.generate_async(ids(A))
    fake.death = EngineStoppedError("the loop met a bus error")
    with pytest.raises(EngineStoppedError, match="bus error"):
        handle.result(5)
    with pytest.raises(EngineStoppedError, match="bus error"):
        llm.generate_async(ids(A))


def test_a_dropped_llm_stops_its_engine(fake: FakeEngine, tmp_path: Path) -> None:
    llm = LLM(write_engine(tmp_path / "engine"), kv_cache_memory="1MiB")
    thread = llm._client._thread
    del llm
    gc.collect()
    thread.join(5)
    assert not thread.is_alive()
    assert fake.stopped
