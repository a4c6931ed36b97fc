"""Who may compile a grammar now: a few at once, a few wait, those that take long leave the others their places, and one
client leaves other clients a place of each kind."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from tensorwright.errors import QueueFullError

PLACES = 2  # grammars at once
SLOW_PLACES = 2  # beside them, of grammars that have taken QUICK_S
MAX_WAITING = 16
QUICK_S = 0.5

_client: ContextVar[str | None] = ContextVar("client", default=None)


@contextmanager
def on_behalf_of(client: str) -> Iterator[None]:
    """What this thread compiles meanwhile is that client's. Without it, or with "", nobody tells clients apart, as in
    Python's API, and one may have all places."""
    before = _client.set(client or None)
    try:
        yield
    finally:
        _client.reset(before)


class CompileQueue:
    """Thread-safe. First come, first served, but that who waits for an own grammar lets others pass. Whoever waits
    behind n grammars does so for at most about 2 * n * QUICK_S seconds, whatever they are: what survives in the child
    is compiled once more in this process, which takes no longer. Where the n are of several clients, or nobody tells
    clients apart, it is that over PLACES."""

    def __init__(self) -> None:
        self._quick, self._slow = _Places(PLACES), _Places(SLOW_PLACES)
        self._waiting: deque[Place] = deque()
        self._changed = threading.Condition()

    @contextmanager
    def place(self, deadline: float) -> Iterator[Place]:
        """QueueFullError if too many wait, or if none is free at `deadline`, in seconds of time.monotonic()."""
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
        """Whose turn it is of those that wait."""
        return next((place for place in self._waiting if self._quick.has_one_for(place.client)), None)

    def _leave(self, place: Place) -> None:
        with self._changed:
            (self._slow if place.slow else self._quick).holders.remove(place.client)
            self._changed.notify_all()

    def make_slow(self, place: Place) -> None:
        """Moves one that runs to the slow places. QueueFullError if there is none for it."""
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
    """Of one kind. holders: the client of each that is taken."""

    def __init__(self, count: int):
        self._count = count
        self.holders: list[str | None] = []

    @property
    def full(self) -> bool:
        return len(self.holders) >= self._count

    def has_one_for(self, client: str | None) -> bool:
        """One client leaves a place to the others."""
        share = self._count if client is None else max(1, self._count - 1)
        return not self.full and self.holders.count(client) < share


class Place:
    """Of one grammar that is being compiled. client: None if nobody tells clients apart."""

    def __init__(self, queue: CompileQueue, client: str | None):
        self._queue = queue
        self.client = client
        self.slow = False

    def took_long(self) -> None:
        """To be called after QUICK_S, and again if it is begun anew. QueueFullError if too many take long: then this
        one must end."""
        if not self.slow:
            self._queue.make_slow(self)
