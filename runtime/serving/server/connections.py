"""The connections that are open: which of them may be served, and which one gives its place to a newcomer.

Two bounds hold: `most` connections have requests under way, and RESERVE more sockets may be open beside them, so that
a probe finds a door whatever the others do. Who waits between two requests, or has not sent one, costs nothing but a
socket: when sockets run out, such a connection is closed. The address that has most of them loses its oldest one, so
who opens many takes places from itself alone.
"""

from __future__ import annotations

import os
import resource
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from tensorwright.errors import InvalidOptionError
from tensorwright.runtime.serving.server.errors import ApiError

RESERVE = 16  # sockets beyond those that are served
CLOSED_EARLY = ("gave_its_place", "malformed", "took_nothing")  # why


@dataclass(eq=False)
class Place:
    """What the table knows of one accepted socket. close: ends it at once. requests: those under way. served: they
    count. since: when it began to do what it does, in steps of the table, not of a clock."""

    address: str
    close: Callable[[], None]
    requests: int = 0
    served: bool = False
    since: int = 0


class _Group:
    """Places by address, those of one address in the order in which they came. No address is there without a place."""

    def __init__(self) -> None:
        self.size = 0
        self._places: dict[str, dict[Place, None]] = {}

    def add(self, place: Place) -> None:
        self._places.setdefault(place.address, {})[place] = None
        self.size += 1

    def remove(self, place: Place) -> bool:
        """False if it was not there."""
        mine = self._places.get(place.address, {})
        if place not in mine:
            return False
        del mine[place]
        if not mine:
            del self._places[place.address]
        self.size -= 1
        return True

    def __contains__(self, place: Place) -> bool:
        return place in self._places.get(place.address, ())

    def count(self, address: str) -> int:
        return len(self._places.get(address, ()))

    def oldest(self, address: str | None) -> Place | None:
        """Of this address, or, with None, of the one that has most; where two have as many, of the one that waits
        longer."""
        groups = self._places.values() if address is None else [self._places.get(address, {})]
        firsts = [(len(group), next(iter(group))) for group in groups if group]
        return max(firsts, key=lambda first: (first[0], -first[1].since))[1] if firsts else None


class Connections:
    """The table of all of them. Belongs to one event loop.

    most: connections with requests under way; one more is answered 503. per_address: the same of one address, answered
    429; None: no bound. retry_after: seconds that who is turned away is told to wait. closed: how many were closed
    early, by reason.
    """

    def __init__(self, most: int, per_address: int | None = None, retry_after: int = 1):
        self.most = most
        self.closed: Counter[str] = Counter()
        self._per_address = per_address
        self._headers = {"retry-after": str(retry_after), "connection": "close"}
        self._steps = 0
        self._all, self._served = _Group(), _Group()
        self._waiting = _Group()  # without a request under way
        self._asking = _Group()  # with requests that do not count: probes, and those that were turned away

    @property
    def open(self) -> int:
        """Sockets."""
        return self._all.size

    @property
    def served(self) -> int:
        """Those with requests under way that count."""
        return self._served.size

    def enter(self, address: str, close: Callable[[], None]) -> Place:
        """Notes an accepted socket. For it one that waits may be closed; where there are too many, there is such a one,
        for those whose requests count are fewer."""
        if self._per_address is not None and self._all.count(address) >= self._per_address + RESERVE:
            self.give_up_one(address)
        if self.open >= self.most + RESERVE:
            self.give_up_one()
        place = Place(address, close)
        self._all.add(place)
        self._move(place, self._waiting)
        return place

    def leave(self, place: Place) -> None:
        """Its socket is closed, or about to be. May be told twice."""
        if self._all.remove(place):
            self._move(place, None)

    def begin(self, place: Place, probe: bool) -> ApiError | None:
        """A request's head has come. probe: it is answered in any case. Else the answer may be this error, with which
        the connection ends."""
        place.requests += 1
        if place.served:
            return None
        refusal = None if probe else self._refusal(place.address)
        place.served = not probe and refusal is None
        self._move(place, self._served if place.served else self._asking)
        return refusal

    def end(self, place: Place) -> None:
        """The answer to one of its requests is complete."""
        place.requests -= 1
        if place.requests == 0:
            place.served = False
            self._move(place, self._waiting)

    def give_up_one(self, address: str | None = None) -> bool:
        """Closes the oldest that waits; where none does, the oldest whose requests do not count, for its client may
        leave the answers unread. address: of this one alone. False if there is none of either."""
        oldest = self._waiting.oldest(address) or self._asking.oldest(address)
        if oldest is None:
            return False
        self.closed["gave_its_place"] += 1
        self.leave(oldest)
        oldest.close()
        return True

    def _refusal(self, address: str) -> ApiError | None:
        if self.served >= self.most:
            status, kind, why = 503, "service_unavailable_error", f"this server has {self.most} connections, its most"
        elif self._per_address is not None and self._served.count(address) >= self._per_address:
            status, kind, why = 429, "rate_limit_error", f"your address has {self._per_address} connections, its most"
        else:
            return None
        return ApiError(status, f"{why}: come again later", kind, None, "too_many_connections", self._headers)

    def _move(self, place: Place, group: _Group | None) -> None:
        """From whichever group it is in. None: to nowhere, for its socket is gone."""
        for other in (self._waiting, self._asking, self._served):
            other.remove(place)
        self._steps += 1
        place.since = self._steps
        if group is not None and place in self._all:
            group.add(place)


SPARE = 32  # for engines, logs, child processes, and sockets that are being closed


def allow_sockets(wanted: int, least: int) -> int:
    """Raises the limit of open files as far as `wanted` sockets need and the system lets us; returns how many there may
    be, at most `wanted`. Raises InvalidOptionError if that is below `least`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + SPARE + _open_files()
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    room = wanted if soft == resource.RLIM_INFINITY or soft >= needed else soft - SPARE - _open_files()
    if room < least:
        raise InvalidOptionError(
            f"serving needs {least + SPARE + _open_files()} open files, and this process may have {soft}: raise its "
            "limit (ulimit -n)"
        )
    return room


def _open_files() -> int:
    return len(os.listdir("/dev/fd"))
