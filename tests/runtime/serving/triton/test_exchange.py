"""What a stream tells its client when an answer cannot be made or sent."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from support.waiting import wait_until
from tensorwright.runtime.serving.triton.exchange import Exchange, JoinedStream, Stream


class Handle:
    """A request that is still running and says nothing new."""

    done = False

    def __init__(self) -> None:
        self.aborted = False

    def abort(self) -> bool:
        self.aborted = True
        return True

    def latest(self) -> Any:
        return SimpleNamespace(finished=False)

    def on_change(self, callback: Any) -> None:
        callback()


class Channel:
    def __init__(self, broken: bool = False):
        self.sent: list[tuple[Any, Exception | None, bool]] = []
        self.broken = broken

    def send(self, tensors: Any, error: Exception | None, final: bool) -> None:
        if self.broken:
            raise RuntimeError("the server has forgotten it")
        self.sent.append((tensors, error, final))

    def is_cancelled(self) -> bool:
        return False


def stream_of(channel: Channel, handle: Handle, responses: Any) -> Stream:
    stream = Stream("seven", channel)
    stream.parts.append((handle, SimpleNamespace(streams=True, responses=responses)))  # type: ignore[arg-type]
    return stream


def test_an_answer_that_cannot_be_made_is_an_error_of_its_client() -> None:
    def fail(output: Any) -> Any:
        raise ValueError("no such tensor")

    channel, handle = Channel(), Handle()
    stream = stream_of(channel, handle, fail)
    stream.send_news()
    [(tensors, error, final)] = channel.sent
    assert (tensors, str(error), final) == (None, "no such tensor", True)
    assert handle.aborted
    assert stream.closed


def test_an_answer_that_cannot_be_sent_ends_the_request_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    handle = Handle()
    exchange = Exchange(0.01)
    name = Exchange.__module__
    with caplog.at_level(logging.WARNING, name):
        exchange.add(stream_of(Channel(broken=True), handle, lambda output: [{}]))
        wait_until(lambda: handle.aborted and sum(record.name == name for record in caplog.records) == 2)
    exchange.close()
    assert "request 'seven' ends, an answer could not be sent: the server has forgotten it" in caplog.text


def test_of_joined_prompts_one_that_fails_ends_the_others_and_is_the_answer() -> None:
    class Failed(Handle):
        done = True

        def latest(self) -> Any:
            raise ValueError("not a number")

    class Ended(Handle):
        """Done once it is aborted."""

        @property
        def done(self) -> bool:  # type: ignore[override]
            return self.aborted

        def latest(self) -> Any:
            return SimpleNamespace(finished=True)

    channel, handles = Channel(), [Ended(), Failed(), Ended()]
    stream = JoinedStream("seven", channel)
    for handle in handles:
        reply = SimpleNamespace(streams=False, pad=0, responses=lambda output: [{"a": output}])
        stream.parts.append((handle, reply))  # type: ignore[arg-type]
    stream.send_news()
    stream.send_news()
    ((tensors, error, final),) = channel.sent
    assert (tensors, str(error), final) == (None, "not a number", True)
    assert all(handle.aborted for handle in handles)
    assert stream.closed
