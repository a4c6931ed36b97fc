"""The client of replicas that do what a test says: what is sent again, goes on, is refused and is bounded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("ray", reason="ray is not installed: pip install -e '.[ray]'")

from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError

from support.fake_replicas import FakeHandle, answers, counts, hangs, news
from support.waiting import PATIENCE, wait_until
from tensorwright import GuidedDecodingParams, SamplingParams
from tensorwright.errors import (
    EngineStoppedError,
    InvalidRequestError,
    QueueFullError,
    ReplicaLostError,
    RequestAbortedError,
    TemporarilyUnavailableError,
)
from tensorwright.runtime.requests.request_handle import RequestHandle
from tensorwright.runtime.requests.request_state import RequestState
from tensorwright.runtime.serving.ray import remote_client
from tensorwright.runtime.serving.ray.fleet_stats import COUNTERS
from tensorwright.runtime.serving.ray.remote_client import MAX_ATTEMPTS, Limits, RemoteClient
from tensorwright.runtime.serving.ray.wire import RemoteRequest

DIED = ActorDiedError()
PARAMS = SamplingParams(max_tokens=6, seed=1, detokenize=False)
Start = Callable[..., RemoteClient]


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_client, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(remote_client, "MAX_PAUSE", 0.001)
    monkeypatch.setattr(remote_client, "WATCH_SECONDS", 0.001)


@pytest.fixture
def start() -> Iterator[Start]:
    clients = []

    def make(handle: FakeHandle, resume: bool = True, report: Any = None, **limits: int) -> RemoteClient:
        chosen = Limits(**{"places": 4, "requests": 5, "queue": 16, **limits})
        clients.append(RemoteClient(handle, report or (lambda: {"r": {}}), chosen, resume))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


def send(client: RemoteClient, params: SamplingParams = PARAMS, prompt: tuple[int, ...] = (1, 2)) -> RequestHandle:
    request = RemoteRequest(list(prompt), params)
    return client.submit(lambda number: RequestState(number, None, list(prompt), params, None), request)


def tokens(handle: RequestHandle) -> list[int]:
    return handle.result(PATIENCE).outputs[0].token_ids


def test_a_request_gets_its_events(start: Start) -> None:
    handle = FakeHandle(answers(news(3, queue_s=0.25, first_token_s=0.75), news(4, 5, finish="length")))
    ended: list[Any] = []
    client = start(handle)
    client.add_observer(lambda output, error: ended.append((output.outputs[0].token_ids, error)))
    sent = send(client)
    assert tokens(sent) == [3, 4, 5]
    wait_until(lambda: ended == [([3, 4, 5], None)])
    times = sent.so_far().metrics
    assert times.time_to_first_token is not None
    assert times.queue_time is not None
    assert times.queue_time == max(0.0, times.time_to_first_token - 0.5), "what passed on the way is waiting"
    assert not handle.responses[0].cancelled


@pytest.mark.parametrize("error", [DIED, ActorUnavailableError("gone", b"0" * 16)])
def test_what_had_not_begun_is_sent_again_as_it_was(start: Start, error: Exception) -> None:
    handle = FakeHandle(answers(then=error), counts())
    client = start(handle, resume=False)
    assert tokens(send(client)) == [3, 4, 5, 6, 7, 8]
    first, second = handle.attempts
    assert second == first
    assert handle.responses[0].cancelled
    assert vars(client.outcomes) == {"restarted": 1, "resumed": 0, "lost": 0}


@pytest.mark.parametrize("made", range(1, 6))
def test_what_had_begun_goes_on_with_its_tokens(start: Start, made: int) -> None:
    handle = FakeHandle(counts(made, DIED), counts(1, DIED), counts())
    client = start(handle)
    params = replace(PARAMS, min_tokens=2, stop_token_ids=(99,), logit_bias={5: 1.0})
    assert tokens(send(client, params)) == [3, 4, 5, 6, 7, 8]
    second = handle.attempts[1]
    assert second.tokens == [1, 2, *range(3, 3 + made)]
    assert second.engine == "e", "another engine would give other tokens"
    assert second.params == replace(params, max_tokens=6 - made, min_tokens=max(0, 2 - made))
    assert client.outcomes.resumed == len(handle.attempts) - 1


def test_a_request_that_needs_only_its_end_is_not_sent_again(start: Start) -> None:
    handle = FakeHandle(answers(news(3, 4, 5, 6, 7, 8), then=DIED), hangs())
    sent = send(start(handle))
    assert tokens(sent) == [3, 4, 5, 6, 7, 8]
    assert sent.so_far().outputs[0].finish_reason == "length"
    assert len(handle.attempts) == 1


def test_without_resume_what_had_begun_is_lost(start: Start) -> None:
    handle = FakeHandle(counts(2, DIED), counts())
    client = start(handle, resume=False)
    sent = send(client)
    with pytest.raises(ReplicaLostError, match="the replica that computed the request is gone: send it again"):
        sent.result(PATIENCE)
    assert sent.so_far().outputs[0].token_ids == [3, 4]
    assert len(handle.attempts) == 1
    assert vars(client.outcomes) == {"restarted": 0, "resumed": 0, "lost": 1}


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        (replace(PARAMS, n=2), "several completions"),
        (replace(PARAMS, guided_decoding=GuidedDecodingParams(regex="a+")), "begin its grammar anew"),
        (replace(PARAMS, presence_penalty=1.0), "count the tokens of the output alone"),
        (replace(PARAMS, frequency_penalty=1.0), "count the tokens of the output alone"),
        (replace(PARAMS, prompt_logprobs=1), "prompt_logprobs would be computed anew"),
    ],
)
def test_what_cannot_go_on_says_why(start: Start, params: SamplingParams, reason: str) -> None:
    client = start(FakeHandle(answers(news(3), then=DIED), counts()))
    with pytest.raises(ReplicaLostError, match=reason):
        send(client, params).result(PATIENCE)


def test_a_replica_of_another_engine_refuses_to_go_on(start: Start) -> None:
    refusal = news(finish="error", error_type="ReplicaLostError", error="of another engine")
    client = start(FakeHandle(counts(2, DIED), answers(refusal)))
    with pytest.raises(ReplicaLostError, match="could not go on elsewhere: of another engine"):
        send(client).result(PATIENCE)
    assert client.outcomes.lost == 1


def test_attempts_are_bounded(start: Start) -> None:
    handle = FakeHandle(answers(then=DIED))
    with pytest.raises(ReplicaLostError, match=f"{MAX_ATTEMPTS} replicas were lost"):
        send(start(handle)).result(PATIENCE)
    assert len(handle.attempts) == MAX_ATTEMPTS


def test_an_answer_without_an_end_is_a_lost_replica(start: Start) -> None:
    handle = FakeHandle(answers(news(3)), counts())
    assert tokens(send(start(handle))) == [3, 4, 5, 6, 7, 8]


def test_a_replica_that_dies_after_the_end_costs_nothing(start: Start) -> None:
    handle = FakeHandle(answers(news(3, finish="length"), then=DIED))
    client = start(handle, resume=False)
    assert tokens(send(client)) == [3]
    assert vars(client.outcomes) == {"restarted": 0, "resumed": 0, "lost": 0}


def test_errors_of_the_request_are_its_own(start: Start) -> None:
    wrong = news(finish="error", error_type="InvalidRequestError", error="no")
    handle = FakeHandle(answers(wrong), counts())
    client = start(handle)
    with pytest.raises(InvalidRequestError, match="no"):
        send(client).result(PATIENCE)
    assert tokens(send(client)) == [3, 4, 5, 6, 7, 8]


def test_an_unforeseen_error_of_a_replica_ends_the_request(start: Start) -> None:
    failed = RayTaskError("generate", "traceback", ValueError("a bug"))
    handle = FakeHandle(answers(then=failed), counts())
    with pytest.raises(RayTaskError):
        send(start(handle)).result(PATIENCE)
    assert len(handle.attempts) == 1


def test_an_engine_that_stopped_behind_ray_is_a_lost_replica(start: Start) -> None:
    stopped = RayTaskError("generate", "traceback", EngineStoppedError("died")).as_instanceof_cause()
    handle = FakeHandle(answers(then=stopped), counts())
    assert tokens(send(start(handle))) == [3, 4, 5, 6, 7, 8]


def test_an_aborted_request_ends_here_and_there(start: Start) -> None:
    handle = FakeHandle(hangs(news(3)))
    client = start(handle)
    sent = send(client)
    wait_until(lambda: sent.so_far().outputs[0].token_ids == [3])
    assert sent.abort()
    assert sent.result(PATIENCE).outputs[0].finish_reason == "abort"
    wait_until(lambda: handle.responses[0].cancelled)
    assert not sent.abort()


def test_priority_and_then_arrival_decide_who_waits(start: Start) -> None:
    """One place: the first request has it, and the others wait here."""
    handle = FakeHandle(hangs(), counts())
    client = start(handle, places=1, requests=1)
    first = send(client)
    wait_until(lambda: len(handle.attempts) == 1)
    rest = [send(client, replace(PARAMS, priority=priority), (priority, 2)) for priority in (0, 5, 5, 9)]
    wait_until(lambda: client.stats()["waiting"] == 4)
    first.abort()
    for each in rest:
        each.result(PATIENCE)
    assert [attempt.tokens[0] for attempt in handle.attempts[1:]] == [9, 5, 5, 0]
    assert [attempt.queued for attempt in handle.attempts[1:]] == [3, 2, 1, 0], "replicas hear of those who wait"


def test_room_grows_with_the_replicas(start: Start) -> None:
    present = {"a": {}}
    handle = FakeHandle(hangs())
    client = start(handle, report=lambda: dict(present), places=1, requests=1, queue=1)
    held = [send(client), send(client)]
    with pytest.raises(QueueFullError, match="2 requests, running and waiting"):
        send(client)
    present["b"] = {}
    wait_until(lambda: len(handle.attempts) == 2)
    held.append(send(client))
    with pytest.raises(QueueFullError, match="3 requests, running and waiting"):
        send(client)
    for each in held:
        each.abort()


def test_without_replicas_requests_wait_and_are_refused_after_long(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    present = {"a": {}}
    client = start(FakeHandle(hangs()), report=lambda: dict(present))
    assert client.running
    sent = send(client)
    present.clear()
    wait_until(lambda: not client.running)
    other = send(client)
    assert not other.done
    monkeypatch.setattr(remote_client, "MAX_WITHOUT_REPLICAS", 0.0)
    for waiting in (sent, other):
        with pytest.raises(TemporarilyUnavailableError, match="there has been no replica for 0 seconds"):
            waiting.result(PATIENCE)
    with pytest.raises(TemporarilyUnavailableError):
        send(client)
    present["b"] = {}
    wait_until(lambda: client.running)
    send(client).abort()


def test_the_time_of_a_request_counts_from_its_arrival_here(start: Start) -> None:
    handle = FakeHandle(answers(then=DIED), counts())
    send(start(handle), replace(PARAMS, timeout=100.0)).result(PATIENCE)
    first, second = (attempt.params.timeout for attempt in handle.attempts)
    assert first is not None
    assert second is not None
    assert 0 < second < first < 100.0


def test_closing_ends_all_requests(start: Start) -> None:
    handle = FakeHandle(hangs())
    client = start(handle)
    sent = send(client)
    client.close()
    assert handle.is_shut_down
    with pytest.raises(RequestAbortedError, match="shut down before the request finished"):
        sent.result(PATIENCE)
    for refused in (lambda: send(client), client.stats):
        with pytest.raises(EngineStoppedError, match="the replicas were shut down"):
            refused()
    assert not client.running
    client.close()


def test_statistics_are_sums_that_never_fall(start: Start) -> None:
    group = {
        "window": 0, "chunked": False, "sink_tokens": 0, "kv_budget": 0, "total_blocks": 8, "free_blocks": 5,
        "cached_blocks": 1, "used_blocks": 2,
    }  # fmt: skip

    def stats(steps: int, stalled: float) -> dict[str, Any]:
        gauges = dict.fromkeys(remote_client.FleetStats().total(), 0)
        return {"stats": {**gauges, "steps": steps, "running": 2, "stalled_seconds": stalled, "groups": [group]}}

    present = {"a": stats(5, 1.0), "b": stats(7, 3.0)}
    client = start(FakeHandle(hangs()), report=lambda: dict(present))
    wait_until(lambda: client.stats()["steps"] == 12)
    total = client.stats()
    assert (total["running"], total["groups"][0]["used_blocks"], total["stalled_seconds"]) == (4, 4, 3.0)
    assert client.stalled_seconds == 1.0, "one replica that works is enough"
    assert "steps" in COUNTERS
    del present["b"]
    wait_until(lambda: client.stats()["running"] == 2)
    assert client.stats()["steps"] == 12
    present["c"] = stats(1, 0.0)
    wait_until(lambda: client.stats()["steps"] == 13)
    assert client.stats()["fleet"] == {"replicas": 2, "restarted": 0, "resumed": 0, "lost": 0}
