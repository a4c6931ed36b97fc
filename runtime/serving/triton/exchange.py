"""Carries responses from the engine to Triton, and cancellations from Triton to the engine, in two threads.

The first thread waits for streams with something new from the engine, and sends the responses that are due. The second
asks Triton from time to time which requests were cancelled. No request has a thread, and nothing waits for one request.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Mapping
from typing import Protocol

import numpy as np

from tensorwright.runtime.requests.request_news import RequestNews
from tensorwright.runtime.serving.triton.replies import Reply, join

logger = logging.getLogger(__name__)
Response = tuple[Mapping[str, np.ndarray] | None, Exception | None]
"""The tensors of a response, or the error that is sent instead."""


class Channel(Protocol):
    """Takes the responses of one request. model.py implements it over Triton's response sender."""

    def send(self, tensors: Mapping[str, np.ndarray] | None, error: Exception | None, final: bool) -> None: ...

    def is_cancelled(self) -> bool: ...


class CancelledByClient(Exception):  # A cancellation is no error, so the name does not say "Error".
    """The client cancelled the request or went away."""


class Stream:
    """One request of Triton, with an engine request and a reply for each of its prompts."""

    def __init__(self, request_id: str, channel: Channel):
        self.request_id = request_id
        self.parts: list[tuple[RequestNews, Reply]] = []
        self.queued = False
        self.closed = False
        self.cancelled = False
        self._channel = channel
        self._ended: set[int] = set()
        self._lock = threading.Lock()  # The lock prevents calls of a closed channel.

    def abort(self) -> None:
        for news, _ in self.parts:
            news.abort()

    def is_cancelled(self) -> bool:
        with self._lock:
            return not self.closed and self._channel.is_cancelled()

    def send_news(self) -> None:
        """Sends every response that is due; the last one closes the stream."""
        if self.closed:
            return
        due: list[Response] = []
        for index, (news, reply) in enumerate(self.parts):
            if index not in self._ended and (reply.streams or news.done):
                due += self._responses(index, news, reply)
        final = self._all_ended()
        if final and self.cancelled:
            due = [(None, CancelledByClient("the request was cancelled"))]
        if final and not due:
            due = [(None, None)]
        with self._lock:
            for position, (tensors, error) in enumerate(due):
                last = final and position == len(due) - 1
                self._channel.send(tensors, error, last)
                self.closed = last

    def _all_ended(self) -> bool:
        return len(self._ended) == len(self.parts)

    def _responses(self, index: int, news: RequestNews, reply: Reply) -> list[Response]:
        try:
            output = news.latest()
            due: list[Response] = [(tensors, None) for tensors in reply.responses(output)]
        except Exception as error:  # The client gets errors of the request and of writing its answer.
            self._ended.add(index)
            news.abort()
            return [(None, error)]
        if output.finished:
            self._ended.add(index)
        return due

    def give_up(self) -> None:
        """Ends the request after a failed send, and tells Triton that no response follows."""
        self.abort()
        with self._lock:
            if self.closed:
                return
            self.closed = True
            try:
                self._channel.send(None, None, True)
            except Exception as error:
                logger.warning("request %r cannot be closed, Triton has forgotten it: %s", self.request_id, error)


class JoinedStream(Stream):
    """The stream of a model that answers a request once. One response holds all prompts and is sent when the last has
    ended. The first error replaces this response and ends the other prompts."""

    def __init__(self, request_id: str, channel: Channel):
        super().__init__(request_id, channel)
        self._answers: dict[int, Mapping[str, np.ndarray]] = {}
        self._error: Exception | None = None

    def _responses(self, index: int, news: RequestNews, reply: Reply) -> list[Response]:
        for tensors, error in super()._responses(index, news, reply):
            if tensors is not None:
                self._answers[index] = tensors
            elif self._error is None:
                self._error = error
                self.abort()
        if not self._all_ended():
            return []
        return [(None, self._error)] if self._error is not None else [(self._join(), None)]

    def _join(self) -> Mapping[str, np.ndarray]:
        return join([self._answers[index] for index in range(len(self.parts))], [reply.pad for _, reply in self.parts])


class Exchange:
    """The two threads and the streams they serve. Call `close` once the engine has ended."""

    def __init__(self, period_s: float):
        self._period = period_s
        self._streams: set[Stream] = set()
        self._changed: queue.SimpleQueue[Stream | None] = queue.SimpleQueue()
        self._state = threading.Condition()
        self._closing = False
        self._threads = [
            threading.Thread(target=self._send, name="tensorwright-send", daemon=True),
            threading.Thread(target=self._watch, name="tensorwright-cancel", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def add(self, stream: Stream) -> None:
        """Answers the stream from now on. All parts of the stream must be there."""
        with self._state:
            self._streams.add(stream)
            self._state.notify_all()
        for news, _ in stream.parts:
            news.on_change(lambda: self._announce(stream))

    def stop(self, request_id: str) -> bool:
        """Ends all requests of this id, which answer with their output so far. Returns False if there is none."""
        with self._state:
            found = [stream for stream in self._streams if stream.request_id == request_id]
        for stream in found:
            stream.abort()
        return bool(found)

    def close(self) -> None:
        """Sends the responses that are left, then ends the threads."""
        self._changed.put(None)
        with self._state:
            self._closing = True
            self._state.notify_all()
        for thread in self._threads:
            thread.join()

    def _announce(self, stream: Stream) -> None:
        with self._state:
            if stream.queued:
                return
            stream.queued = True
        self._changed.put(stream)

    def _send(self) -> None:
        while (stream := self._changed.get()) is not None:
            with self._state:
                stream.queued = False  # Cleared before reading, so that a later change is announced again.
            try:
                stream.send_news()
            except Exception as error:  # Mostly Triton has dropped the request. Other requests go on.
                logger.warning("request %r ends, an answer could not be sent: %s", stream.request_id, error)
                stream.give_up()
            if stream.closed:
                with self._state:
                    self._streams.discard(stream)

    def _watch(self) -> None:
        while True:
            with self._state:
                self._state.wait_for(lambda: self._closing or bool(self._streams))
                if self._closing:
                    return
                streams = list(self._streams)
            for stream in streams:
                if not stream.cancelled and _is_cancelled(stream):
                    stream.cancelled = True
                    stream.abort()
            with self._state:
                self._state.wait_for(lambda: self._closing, self._period)


def _is_cancelled(stream: Stream) -> bool:
    try:
        return stream.is_cancelled()
    except Exception:  # Triton has dropped the request, so nobody waits for an answer.
        return True
