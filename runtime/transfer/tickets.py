"""Keeps the prefixes that an engine has computed for others, each under a ticket, until they are fetched.

A ticket holds no memory of the cache: what it names may be evicted, and is then computed again by whoever wanted it.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from tensorwright.errors import TransferError
from tensorwright.runtime.transfer.store import Ids, PrefixStore

MAX_TICKETS = 4096
LIFETIME = 120.0
"""The seconds for which a ticket is good."""


@dataclass(frozen=True)
class Promise:
    """A prompt whose prefix an engine has computed. salt: that under which the engine remembers it."""

    store: PrefixStore
    prompt: Ids
    salt: str


class Tickets:
    """The open tickets of a server. It is thread-safe. clock: returns the time in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._lock = threading.Lock()
        self._open: OrderedDict[str, tuple[float, Promise]] = OrderedDict()  # the oldest first

    def issue(self, promise: Promise) -> str:
        """Returns a new ticket, which is good once. The oldest ticket goes if there are too many."""
        ticket = secrets.token_hex(16)
        with self._lock:
            self._drop_old()
            while len(self._open) >= MAX_TICKETS:
                self._open.popitem(last=False)
            self._open[ticket] = (self._clock() + LIFETIME, promise)
        return ticket

    def redeem(self, ticket: str) -> Promise:
        """Raises TransferError for a ticket that is not known, was used, or is too old."""
        with self._lock:
            self._drop_old()
            found = self._open.pop(ticket, None)
        if found is None:
            raise TransferError("a ticket must be one that this engine gave out and nobody has used, and is none")
        return found[1]

    def __len__(self) -> int:
        with self._lock:
            self._drop_old()
            return len(self._open)

    def _drop_old(self) -> None:
        now = self._clock()
        while self._open and next(iter(self._open.values()))[0] <= now:
            self._open.popitem(last=False)
