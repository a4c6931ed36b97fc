"""Queues grammars for compilation: a few compile at once and a few wait.

A grammar that takes long moves to a slow place and so gives its quick place to others. One client always leaves a place
of each kind to other clients.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from tensorwright.errors import QueueFullError

PLACES = 2  # the number of grammars that compile at once in quick places
SLOW_PLACES = 2  # the number of further places, for grammars that have taken QUICK_S
MAX_WAITING = 16
QUICK_S = 0.5

_client: ContextVar[str | None] = ContextVar("client", default=None)


@contextmanager
def on_behalf_of(client: str) -> Iterator[None]:
    """Marks the grammars that this thread compiles inside the context as those of `client`.

    Outside such a context, or with "", grammars have no client, as in Python's API, and may take all places.
    """
    before = _client.set(client or None)
    try:
        yield
    finally:
        _client.reset(before)


def current_client() -> str:
    """Returns the client of `on_behalf_of`, "" outside such a context."""
    return _client.get() or ""


class CompileQueue:
    """The queue of grammars. It is thread-safe.

    The first to come is the first to be served, but a client that waits only for its own grammars lets others pass. A
    grammar behind n others waits for at most about 2 * n * QUICK_S seconds: a grammar that survives in the child is
    compiled once more in this process, which takes no longer. If the n grammars belong to several clients, or have no
    client, the wait is that divided by PLACES.
    """

    def __init__(self) -> None:
        self._quick, self._slow = _Places(PLACES), _Places(SLOW_PLACES)
        self._waiting: deque[Place] = deque()
        self._changed = threading.Condition()

    @contextmanager
    def place(self, deadline: float) -> Iterator[Place]:
        """Waits for a place and holds it inside the context. deadline: in seconds of time.monotonic().

        Raises QueueFullError if too many grammars wait, or if no place is free at the deadline.
        """
        place = Place(self, _client.get())
        self._enter(place, deadline)
        try:
            yield place
        finally:
            self._leave(place)

    def _enter(self, place: Place, deadline: float) -> None:
        with self._changed:
            if len(self._waiting) >= MAX_WAITING:
                raise QueueFullError(f"{MAX_WAITING} grammars wait to be compiled already; try again later")
            self._waiting.append(place)
            try:
                if not self._changed.wait_for(lambda: self._next() is place, max(0.0, deadline - time.monotonic())):
                    raise QueueFullError("other grammars are still being compiled; try again later")
                self._quick.holders.append(place.client)
            finally:
                self._waiting.remove(place)
                self._changed.notify_all()

    def _next(self) -> Place | None:
        """Returns the waiting place whose turn it is, None if none of them can start."""
        return next((place for place in self._waiting if self._quick.has_one_for(place.client)), None)

    def _leave(self, place: Place) -> None:
        with self._changed:
            (self._slow if place.slow else self._quick).holders.remove(place.client)
            self._changed.notify_all()

    def make_slow(self, place: Place) -> None:
        """Moves a running grammar to a slow place. Raises QueueFullError if no slow place is free for it."""
        with self._changed:
            if not self._slow.has_one_for(place.client):
                others = "other grammars take" if self._slow.full else "another grammar of the same client takes"
                raise QueueFullError(
                    f"{others} as long to compile as this one, which was ended after {QUICK_S:g} s; try again later"
                )
            self._slow.holders.append(place.client)
            self._quick.holders.remove(place.client)
            place.slow = True
            self._changed.notify_all()


class _Places:
    """The places of one kind. holders: the client of each place that is taken."""

    def __init__(self, count: int):
        self._count = count
        self.holders: list[str | None] = []

    @property
    def full(self) -> bool:
        return len(self.holders) >= self._count

    def has_one_for(self, client: str | None) -> bool:
        """Whether a place is free for this client. One client always leaves a place to the others."""
        share = self._count if client is None else max(1, self._count - 1)
        return not self.full and self.holders.count(client) < share


class Place:
    """The place of one grammar in the queue. client: the grammar's client; None means that clients are not
    distinguished."""

    def __init__(self, queue: CompileQueue, client: str | None):
        self._queue = queue
        self.client = client
        self.slow = False

    def took_long(self) -> None:
        """Reports that the grammar has taken QUICK_S; may be called again if the grammar starts anew.

        Raises QueueFullError if too many grammars take long. Then this grammar must end.
        """
        if not self.slow:
            self._queue.make_slow(self)
