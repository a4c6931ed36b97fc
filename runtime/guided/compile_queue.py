"""Who may compile a grammar now: a few at once, a few wait, and those that take long leave the others their places."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from tensorwright.errors import QueueFullError

PLACES = 2  # grammars at once
SLOW_PLACES = 2  # beside them, of grammars that have taken QUICK_S
MOST_WAITING = 16
QUICK_S = 0.5


class CompileQueue:
    """Thread-safe. First come, first served. Whoever waits behind n others does so for at most about
    2 * n * QUICK_S / PLACES seconds, whatever those others compile: what survives in the child is compiled once more in
    this process, which takes no longer. The server's pool, in pools.py, is fair by client before anybody comes here."""

    def __init__(self) -> None:
        self._free, self._slow_free = PLACES, SLOW_PLACES
        self._waiting: deque[object] = deque()
        self._changed = threading.Condition()

    @contextmanager
    def place(self, deadline: float) -> Iterator[Place]:
        """QueueFullError if too many wait, or if none is free at `deadline`, in seconds of time.monotonic()."""
        self._enter(deadline)
        place = Place(self)
        try:
            yield place
        finally:
            self._leave(place.slow)

    def _enter(self, deadline: float) -> None:
        me = object()
        with self._changed:
            if len(self._waiting) >= MOST_WAITING:
                raise QueueFullError(f"{MOST_WAITING} grammars wait to be compiled already; try again later")
            self._waiting.append(me)
            try:
                free = self._changed.wait_for(
                    lambda: self._free > 0 and self._waiting[0] is me, max(0.0, deadline - time.monotonic())
                )
                if not free:
                    raise QueueFullError("other grammars are still being compiled; try again later")
                self._free -= 1
            finally:
                self._waiting.remove(me)
                self._changed.notify_all()

    def _leave(self, slow: bool) -> None:
        with self._changed:
            self._free += not slow
            self._slow_free += slow
            self._changed.notify_all()

    def make_slow(self) -> bool:
        """Moves one that runs to the slow places. False if they are taken."""
        with self._changed:
            if self._slow_free == 0:
                return False
            self._slow_free -= 1
            self._free += 1
            self._changed.notify_all()
            return True


class Place:
    """Of one grammar that is being compiled."""

    def __init__(self, queue: CompileQueue):
        self._queue = queue
        self.slow = False

    def took_long(self) -> None:
        """To be called after QUICK_S. QueueFullError if too many take long: then this one must end."""
        if not self._queue.make_slow():
            raise QueueFullError(
                f"{SLOW_PLACES} other grammars take as long to compile as this one, which was ended after {QUICK_S:g} "
                "s; try again later"
            )
        self.slow = True
