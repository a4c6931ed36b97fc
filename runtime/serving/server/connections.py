"""Decides which open connections may be served, and which one is closed to make room for a new one.

Two bounds hold: `most` connections have requests under way, and RESERVE more sockets may be open beside them, so that
a probe can always connect. A connection that waits between two requests, or has sent none, costs only a socket. When
sockets run out, such a connection is closed. The address with most of these connections loses its oldest one, so a
client that opens many of them loses only its own.
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
CLOSED_EARLY = ("gave_its_place", "malformed", "took_nothing")  # the reasons for closing a connection early


@dataclass(eq=False)
class Place:
    """The table's entry for one accepted socket.

    close: ends the connection at once. requests: the number of requests under way. served: whether these requests
    count against the bounds. since: the step of the table, not a clock's time, at which the entry changed its group.
    """

    address: str
    close: Callable[[], None]
    requests: int = 0
    served: bool = False
    since: int = 0


class _Group:
    """Places by address. The places of one address stand in the order in which they came. No address has no place."""

    def __init__(self) -> None:
        self.size = 0
        self._places: dict[str, dict[Place, None]] = {}

    def add(self, place: Place) -> None:
        self._places.setdefault(place.address, {})[place] = None
        self.size += 1

    def remove(self, place: Place) -> bool:
        """Removes a place. Returns False if the group does not have it."""
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
        """Returns the oldest place of an address, or None if there is none. With address None, it is the oldest place
        of the address that has most places; among equals, the address whose oldest place waits longest is taken."""
        groups = self._places.values() if address is None else [self._places.get(address, {})]
        firsts = [(len(group), next(iter(group))) for group in groups if group]
        return max(firsts, key=lambda first: (first[0], -first[1].since))[1] if firsts else None


class Connections:
    """The table of all connections. It belongs to one event loop.

    most: the most connections with requests under way; one more is answered 503.
    per_address: the most such connections of one address; one more is answered 429; None means no bound.
    retry_after: the seconds after which a refused client is told to come again.
    closed: the number of connections that were closed early, by reason.
    """

    def __init__(self, most: int, per_address: int | None = None, retry_after: int = 1):
        self.most = most
        self.closed: Counter[str] = Counter()
        self._per_address = per_address
        self._headers = {"retry-after": str(retry_after), "connection": "close"}
        self._steps = 0
        self._all, self._served = _Group(), _Group()
        self._waiting = _Group()  # connections without a request under way
        self._asking = _Group()  # connections whose requests do not count: probes and refused ones

    @property
    def open(self) -> int:
        """The number of open sockets."""
        return self._all.size

    @property
    def served(self) -> int:
        """The number of connections with requests under way that count."""
        return self._served.size

    def enter(self, address: str, close: Callable[[], None]) -> Place:
        """Notes an accepted socket. If there are too many sockets, a waiting connection is closed. One always exists
        then, for the connections whose requests count are fewer than the bound."""
        if self._per_address is not None and self._all.count(address) >= self._per_address + RESERVE:
            self.give_up_one(address)
        if self.open >= self.most + RESERVE:
            self.give_up_one()
        place = Place(address, close)
        self._all.add(place)
        self._move(place, self._waiting)
        return place

    def leave(self, place: Place) -> None:
        """Removes a connection whose socket is closed or about to be closed. It may be called twice."""
        if self._all.remove(place):
            self._move(place, None)

    def begin(self, place: Place, probe: bool) -> ApiError | None:
        """Notes that a request's head has come. Returns an error if the request must be refused; the connection then
        ends with that answer. probe: whether the request is a probe, which is never refused."""
        place.requests += 1
        if place.served:
            return None
        refusal = None if probe else self._refusal(place.address)
        place.served = not probe and refusal is None
        self._move(place, self._served if place.served else self._asking)
        return refusal

    def end(self, place: Place) -> None:
        """Notes that the answer to one of the connection's requests is complete."""
        place.requests -= 1
        if place.requests == 0:
            place.served = False
            self._move(place, self._waiting)

    def give_up_one(self, address: str | None = None) -> bool:
        """Closes the oldest waiting connection. Where none waits, it closes the oldest one whose requests do not count,
        for its client may leave the answers unread. Returns False if there is neither.

        address: only connections of this address are considered; None means all.
        """
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
        """Moves a place from its group to another one. None means no group, for the socket is gone."""
        for other in (self._waiting, self._asking, self._served):
            other.remove(place)
        self._steps += 1
        place.since = self._steps
        if group is not None and place in self._all:
            group.add(place)


SPARE = 32  # open files that are kept for engines, logs, child processes, and sockets that are being closed


def allow_sockets(wanted: int, least: int) -> int:
    """Raises the limit of open files as far as `wanted` sockets need and the system allows. Returns how many sockets
    may be open, at most `wanted`. Raises InvalidOptionError if that number is below `least`."""
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
