"""An engine that hangs in a step, or dies: the report, what fails, and what goes on with the engine that comes then."""

from __future__ import annotations

import json
import logging
import stat
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.toy_executor import ToyExecutor, options, sampling
from support.waiting import PATIENCE, wait_until
from tensorwright.errors import (
    EngineRestartedError,
    EngineStoppedError,
    InvalidOptionError,
    TemporarilyUnavailableError,
)
from tensorwright.runtime import _runtime
from tensorwright.runtime.api.llm import LLM
from tensorwright.runtime.requests import stall_report
from tensorwright.runtime.requests.engine_client import MOST_STARTS, EngineClient
from tensorwright.runtime.requests.request_handle import RequestHandle
from tensorwright.runtime.requests.request_state import RequestState
from tensorwright.runtime.requests.sampling_params import SamplingParams
from tensorwright.runtime.requests.watchdog import EXIT_STALLED, MAX_REPORTS, Watchdog, WatchdogOptions

PROMPT = [3, 5, 7]
LIMIT = 0.01


class Stalls:
    """A hook of ToyExecutor that lets `free` steps pass, and holds the next one until `release` is set."""

    def __init__(self, free: int):
        self.free = free
        self.reached, self.release = threading.Event(), threading.Event()

    def __call__(self, step: Any) -> None:
        if self.free == 0:
            self.reached.set()
            assert self.release.wait(PATIENCE)
        self.free -= 1


def engine(hook: Any = None, **changes: Any) -> Any:
    executor = ToyExecutor()
    executor.hook = hook
    return _runtime.Engine(executor, options(executor, max_batch_size=1, **changes))


def submit(client: EngineClient, tokens: int, prompt: list[int] | None = None, wait: bool = False) -> RequestHandle:
    prompt = PROMPT if prompt is None else prompt
    params = SamplingParams(max_tokens=tokens, detokenize=False)
    return client.submit(lambda number: RequestState(number, None, prompt, params, None), sampling(tokens), wait)


def tokens_of(handle: RequestHandle) -> list[int]:
    return handle.result(PATIENCE).outputs[0].token_ids


@pytest.fixture
def stalls() -> Iterator[Stalls]:
    made = Stalls(2)
    yield made
    made.release.set()


def watched(stalls: Stalls, folder: Path, action: str) -> tuple[EngineClient, Watchdog, list[int]]:
    """A client whose engine hangs in its third step, and a watchdog that looks only when it is told to."""
    exits: list[int] = []
    client = EngineClient(engine(stalls), start_again=engine, keep_waiting=True)
    dog = client._watchdog = Watchdog(client, WatchdogOptions(action, LIMIT, str(folder)), exits.append)
    return client, dog, exits


def hang(client: EngineClient, stalls: Stalls) -> tuple[RequestHandle, list[RequestHandle]]:
    """Returns a request that has begun, and two that wait, while the engine hangs."""
    begun = submit(client, 9)
    waiting = [submit(client, 4, [number, 1]) for number in (1, 2)]
    assert stalls.reached.wait(PATIENCE)
    wait_until(lambda: bool(begun.latest().outputs[0].token_ids))
    wait_until(lambda: client.stalled_seconds > LIMIT)
    return begun, waiting


def test_a_step_that_comes_back_late_is_survived_by_those_that_wait(
    stalls: Stalls, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client, dog, _ = watched(stalls, tmp_path, "restart")
    dog.look()
    assert (client.trouble, list(tmp_path.iterdir())) == ("", []), "an engine without requests hangs in nothing"
    begun, waiting = hang(client, stalls)
    dog.look()
    dog.look()  # it acts once for a step
    assert "no step has ended for" in client.trouble
    with pytest.raises(EngineRestartedError, match="no step has ended for"):
        begun.result(PATIENCE)
    with pytest.raises(TemporarilyUnavailableError, match="starts again"):
        submit(client, 2)
    aborted = waiting.pop()
    assert aborted.abort()
    stalls.release.set()
    assert aborted.result(PATIENCE).outputs[0].finish_reason == "abort"
    told = [tokens_of(handle) for handle in waiting]
    wait_until(lambda: not client._starting and not client._requests)  # an answer is there before it is forgotten
    dog.look()
    assert client.trouble == ""
    assert client.running
    assert told == [tokens_of(submit(client, 4, [1, 1]))]
    assert "the engine was given up: no step has ended for" in caplog.text
    client.close()
    [report] = tmp_path.iterdir()
    assert stat.S_IMODE(report.stat().st_mode) == 0o600
    facts = json.loads(report.read_text(encoding="utf-8"))
    assert facts["requests"] == 3
    assert [each["prompt_tokens"] for each in facts["of_them"]] == [3, 2, 2]
    assert facts["engine"]["running"] == 1
    assert any("in look" in line for line in facts["stacks"])
    assert any("in __call__" in line for line in facts["stacks"]), "the executor's own frames"
    assert {"tensorwright-events"} <= {each["name"] for each in facts["threads"]}
    assert str(PROMPT) not in report.read_text(encoding="utf-8"), "a report holds no prompts"


def test_report_leaves_the_requests_alone(stalls: Stalls, tmp_path: Path) -> None:
    client, dog, _ = watched(stalls, tmp_path, "report")
    begun, waiting = hang(client, stalls)
    dog.look()
    assert client.trouble
    stalls.release.set()
    assert len(tokens_of(begun)) == 9
    assert [len(tokens_of(handle)) for handle in waiting] == [4, 4]
    wait_until(lambda: not client._requests)
    dog.look()
    assert client.trouble == ""
    client.close()
    assert len(list(tmp_path.iterdir())) == 1


def test_exit_ends_the_process_after_the_report(stalls: Stalls, tmp_path: Path) -> None:
    client, dog, exits = watched(stalls, tmp_path, "exit")
    hang(client, stalls)
    dog.look()
    assert exits == [EXIT_STALLED]
    assert len(list(tmp_path.iterdir())) == 1
    stalls.release.set()
    client.close()


def test_a_report_that_cannot_be_written_stops_nothing(
    stalls: Stalls, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, dog, _ = watched(stalls, tmp_path / "nowhere", "restart")
    begun, _ = hang(client, stalls)
    with caplog.at_level(logging.ERROR):
        dog.look()
    assert "the report could not be written" in caplog.text
    with pytest.raises(EngineRestartedError):
        begun.result(PATIENCE)
    written: list[int] = []
    monkeypatch.setattr("tensorwright.runtime.requests.watchdog.write_report", lambda *given: written.append(1))
    for _ in range(2 * MAX_REPORTS):
        dog._report("again")
    assert len(written) == MAX_REPORTS - 1
    stalls.release.set()
    client.close()


def test_the_watchdog_looks_by_itself_and_ends_with_its_client(stalls: Stalls, tmp_path: Path) -> None:
    """Its limit is short only while the first engine hangs: on a busy machine any step may take long."""
    patient = WatchdogOptions("restart", PATIENCE, str(tmp_path))
    client = EngineClient(engine(stalls), start_again=engine, keep_waiting=True, watchdog=patient)
    dog = client._watchdog
    assert dog is not None
    begun = submit(client, 9)
    assert stalls.reached.wait(PATIENCE)
    wait_until(lambda: bool(begun.latest().outputs[0].token_ids))
    dog._options = replace(patient, limit=LIMIT)
    wait_until(lambda: dog.stalled)
    dog._options = patient
    with pytest.raises(EngineRestartedError):
        begun.result(PATIENCE)
    stalls.release.set()
    assert len(tokens_of(submit(client, 4, wait=True))) == 4
    client.close()
    assert dog._thread is not None
    assert not dog._thread.is_alive()


def test_an_engine_that_dies_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    """An invariant is broken in its second step. What has begun fails, and what waits has the tokens that it had."""
    stalls = Stalls(1)
    client = EngineClient(engine(stalls, debug_lose_block=2), start_again=engine, keep_waiting=True)
    begun, waiting = submit(client, 9), submit(client, 4, [1, 1])
    wait_until(lambda: bool(begun.latest().outputs[0].token_ids))
    stalls.release.set()
    with pytest.raises(EngineRestartedError, match="died of"):
        begun.result(PATIENCE)
    assert len(tokens_of(waiting)) == 4
    assert tokens_of(waiting) == tokens_of(submit(client, 4, [1, 1]))
    client.close()
    assert "another one takes its place" in caplog.text


def test_a_request_that_two_engines_die_with_is_given_up_and_the_client_after_more() -> None:
    starts: list[int] = []

    def again() -> Any:
        starts.append(1)
        return engine(debug_lose_block=1)

    client = EngineClient(engine(debug_lose_block=1), start_again=again, keep_waiting=True)
    for ended in (2, MOST_STARTS):
        with pytest.raises(EngineRestartedError, match="died of"):
            submit(client, 4, wait=True).result(PATIENCE)
        wait_until(lambda ended=ended: len(starts) == ended and not client.trouble)
    wait_until(lambda: not client.running)
    with pytest.raises(EngineStoppedError, match="a new"):
        submit(client, 4)
    client.close()


def test_engines_that_others_hold_are_not_replaced() -> None:
    client = EngineClient(engine(), start_again=engine, keep_waiting=True)
    client.prefix_transfers()
    assert client._start_again is None
    client.close()


def test_the_options_of_an_llm(toy_engine: Path, tmp_path: Path) -> None:
    for wrong in ({"watchdog": "bark"}, {"step_limit": 0}, {"step_limit": "soon"}, {"itl_goal": "-1ms"}):
        with pytest.raises(InvalidOptionError, match=next(iter(wrong))):
            LLM(toy_engine, **wrong)  # type: ignore[arg-type]
    settings: dict[str, Any] = {"threads": 1, "kv_cache_memory": "16MiB", "step_limit": "2min"}
    with LLM(toy_engine, **settings) as llm:
        assert (llm._client._watchdog, llm._client._start_again) == (None, None)
    with LLM(toy_engine, watchdog="report", **settings) as llm:
        assert llm._client._watchdog is not None
        assert llm._client._start_again is None
        assert llm._client._watchdog._options == WatchdogOptions("report", 120.0, None)
    with LLM(toy_engine, watchdog="restart", **settings) as llm:
        assert llm._client._start_again is not None
    with LLM(toy_engine, watchdog="restart", trace=tmp_path / "trace.json", **settings) as llm:
        assert llm._client._start_again is None, "the trace is of one engine"


def test_a_report_lists_every_thread() -> None:
    """Also those that have just begun. Others may begin and end meanwhile."""
    go_on = threading.Event()
    mine = [threading.Thread(target=go_on.wait, name=f"waits {number}") for number in range(3)]
    for thread in mine:
        thread.start()
    found = stall_report.threads()
    go_on.set()
    for thread in mine:
        thread.join()
    assert {(thread.native_id, thread.name) for thread in mine} <= {(each["id"], each["name"]) for each in found}
    assert all(each["state"] and each["cpu_s"] >= 0 for each in found)
