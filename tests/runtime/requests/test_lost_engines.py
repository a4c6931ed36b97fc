"""An engine whose ranks are lost again and again: the client gives up, and nobody waits for another engine for good."""

from __future__ import annotations

import threading

import pytest

from support.waiting import PATIENCE, wait_until
from tensorwright.errors import EngineStoppedError, RankError
from tensorwright.runtime.requests.engine_client import MOST_STARTS, EngineClient
from tensorwright.runtime.requests.request_state import RequestState


class Lost:
    """An engine that has stopped by itself."""

    stopped, cause, called_here = True, "died of: [ranks] rank 1 ended", False

    def wait_events(self, timeout: float) -> list:
        return []

    def take_notices(self) -> list[str]:
        return []

    def stats(self) -> dict[str, int]:
        return {"steps": 0}

    def submit(self, *request: object) -> None:
        raise EngineStoppedError(f"[engine] a request needs a running engine, got one that {self.cause}")

    def shutdown(self, drain: bool, timeout: float) -> None:
        """It has stopped."""


def test_a_client_gives_up() -> None:
    started: list[Lost] = []

    def start_again() -> Lost:
        started.append(Lost())
        return started[-1]

    client = EngineClient(Lost(), start_again=start_again)
    client._thread.join(PATIENCE)
    assert len(started) == MOST_STARTS
    assert not client.running
    for wait in (True, False):
        with pytest.raises(EngineStoppedError, match="rank 1 ended"):
            client.submit(lambda number: _state(number), None, wait_for_room=wait)
    client.close()


def test_ranks_that_are_lost_while_they_start_start_again() -> None:
    fresh = Lost()
    outcomes = [RankError("[ranks] rank 1 did not answer"), RankError("[ranks] rank 2 ended"), fresh]

    def start_again() -> Lost:
        outcome = outcomes.pop(0)
        if isinstance(outcome, RankError):
            raise outcome
        return outcome

    client = EngineClient(Lost(), start_again=start_again)
    client._thread.join(PATIENCE)
    assert not outcomes
    assert client._engine is fresh  # which was lost too: the fourth loss without an answer
    with pytest.raises(EngineStoppedError, match="rank 1 ended"):
        client.submit(lambda number: _state(number), None)
    client.close()


def test_a_client_that_is_closed_while_ranks_start() -> None:
    """The engine that comes then is stopped too, or nothing would end the client's thread."""

    class Fresh(Lost):
        stopped, cause = False, "was shut down"

        def shutdown(self, drain: bool, timeout: float) -> None:
            self.stopped = True

    may_close, fresh = threading.Event(), Fresh()
    client: EngineClient

    def start_again() -> Lost:
        assert may_close.wait(PATIENCE)
        closing = threading.Thread(target=client.close)
        closing.start()
        wait_until(lambda: client._closing and client._engine.closed)
        return fresh

    class Old(Lost):
        closed = 0

        def shutdown(self, drain: bool, timeout: float) -> None:
            self.closed += may_close.is_set()  # by close(), not by the client's thread

    client = EngineClient(Old(), start_again=start_again)
    may_close.set()
    client._thread.join(PATIENCE)
    assert not client._thread.is_alive()
    assert fresh.stopped


def test_ranks_that_never_start() -> None:
    starts: list[int] = []

    def start_again() -> Lost:
        starts.append(1)
        raise RankError("[ranks] rank 1 did not answer")

    client = EngineClient(Lost(), start_again=start_again)
    client._thread.join(PATIENCE)
    assert len(starts) == MOST_STARTS
    for wait in (True, False):
        with pytest.raises(EngineStoppedError, match="did not answer"):
            client.submit(lambda number: _state(number), None, wait_for_room=wait)
    client.close()


def _state(number: int) -> RequestState:
    class State:
        request_id, prompt_token_ids = number, (1, 2)

    return State()  # type: ignore[return-value]
