"""Keeps the responses of the Responses API, so that a later request can go on from one of them or read it.

The store is in memory, and what it holds is bounded in number, in bytes and in age. A response belongs to the key that
made it; for every other key it does not exist. Without keys the server cannot tell clients apart: whoever knows the id
of a response can read it, and nobody can guess an id.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastapi import Request

from tensorwright.errors import UnknownResponseError
from tensorwright.runtime.serving.server.options import ServerOptions


@dataclass(frozen=True)
class StoredResponse:
    """A response, and the conversation up to its end.

    answer: the JSON of the response. messages: in the form that LLM.chat takes, without the instructions. size: the
    bytes for which the response counts: those of its JSON, and those of all its messages.
    """

    id: str
    answer: str
    messages: tuple[dict[str, Any], ...]
    messages_size: int

    @property
    def size(self) -> int:
        return len(self.answer.encode()) + self.messages_size


@dataclass(frozen=True)
class _Entry:
    response: StoredResponse
    size: int
    at: float


class ResponseStore:
    """The responses of all keys. Any thread may call it.

    Where there is no room, the owner whose responses have the most bytes loses the oldest of them, so that no key can
    push out what another key has less of. clock: returns the time in seconds.
    """

    def __init__(self, options: ServerOptions, clock: Callable[[], float] = time.monotonic):
        self._most = options.max_stored_responses
        self._most_bytes = options.stored_response_memory
        self._most_seconds = options.max_stored_response_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._owned: dict[int, OrderedDict[str, _Entry]] = {}  # by owner, the oldest first
        self._bytes: dict[int, int] = {}  # by owner
        self._dropped = 0

    @property
    def keeps(self) -> bool:
        """Whether the store keeps anything at all."""
        return self._most > 0

    def state(self) -> tuple[int, int, int]:
        """Returns the number of responses, their bytes, and how many went before their age because room was needed."""
        with self._lock:
            self._expire()
            return sum(map(len, self._owned.values())), sum(self._bytes.values()), self._dropped

    def put(self, owner: int, response: StoredResponse) -> bool:
        """Keeps a response. Returns False if it is larger than the whole store, which then does not keep it."""
        size = response.size
        if not self.keeps or size > self._most_bytes:
            return False
        with self._lock:
            self._expire()
            self._owned.setdefault(owner, OrderedDict())[response.id] = _Entry(response, size, self._clock())
            self._bytes[owner] = self._bytes.get(owner, 0) + size
            while sum(map(len, self._owned.values())) > self._most or sum(self._bytes.values()) > self._most_bytes:
                largest = max(self._bytes, key=lambda each: (self._bytes[each], len(self._owned[each])))
                self._remove(largest, next(iter(self._owned[largest])))
                self._dropped += 1
        return True

    def find(self, owner: int, name: str) -> StoredResponse:
        """Returns an owner's response. Raises UnknownResponseError."""
        with self._lock:
            self._expire()
            if owner not in self._owned or name not in self._owned[owner]:
                raise UnknownResponseError(_missing(name))
            return self._owned[owner][name].response

    def delete(self, owner: int, name: str) -> None:
        """Forgets an owner's response. Raises UnknownResponseError."""
        with self._lock:
            self._expire()
            if owner not in self._owned or name not in self._owned[owner]:
                raise UnknownResponseError(_missing(name))
            self._remove(owner, name)

    def _expire(self) -> None:
        """Removes what is too old."""
        before = self._clock() - self._most_seconds
        for owner in list(self._owned):
            while owner in self._owned:
                name, entry = next(iter(self._owned[owner].items()))
                if entry.at >= before:
                    break
                self._remove(owner, name)

    def _remove(self, owner: int, name: str) -> None:
        entry = self._owned[owner].pop(name)
        self._bytes[owner] -= entry.size
        if not self._owned[owner]:
            del self._owned[owner], self._bytes[owner]


def _missing(name: str) -> str:
    return (
        f"no response {name!r:.100} is stored: it was never stored, was deleted, is too old, or had to make room for "
        "others; send the whole conversation as input instead"
    )


def owner_of(request: Request) -> int:
    """Returns the owner of what a request stores: the number of its key, or 0 if the server has no keys."""
    number: int = request.scope["state"].get("key", 0)
    return number
