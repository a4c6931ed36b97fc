"""The store of responses: what goes when there is no room, and what gets too old."""

from __future__ import annotations

import pytest

from tensorwright.errors import InvalidOptionError, UnknownResponseError
from tensorwright.runtime.serving.server.options import ServerOptions
from tensorwright.runtime.serving.server.response_store import ResponseStore, StoredResponse


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def response(name: str, size: int) -> StoredResponse:
    """A response that counts for so many bytes, three of them in its own JSON."""
    return StoredResponse(name, "abc", (), size - 3)


def make(count: int = 100, memory: int = 1000, clock: Clock | None = None) -> ResponseStore:
    options = ServerOptions(
        max_body_size=10,
        max_stored_responses=count,
        max_stored_response_memory=memory,
        max_stored_response_seconds=60,
    )
    return ResponseStore(options, clock or Clock())


def kept(store: ResponseStore, owner: int, names: str) -> str:
    found = ""
    for name in names:
        try:
            found += store.find(owner, name).id
        except UnknownResponseError:
            continue
    return found


def test_the_oldest_goes_when_there_are_too_many() -> None:
    store = make(count=2)
    for name in "abc":
        assert store.put(1, response(name, 10))
    assert kept(store, 1, "abc") == "bc"
    assert store.state() == (2, 20, 1)


def test_who_has_most_makes_room() -> None:
    """However much one key stores, another keeps what it has, as long as that is less."""
    store = make(memory=1000)
    store.put(1, response("z", 300))
    for name in "abcdefgh":
        store.put(2, response(name, 200))
    assert kept(store, 1, "z") == "z"
    assert kept(store, 2, "abcdefgh") == "fgh"
    assert store.state() == (4, 900, 5)


def test_what_is_larger_than_the_store_is_not_kept_and_pushes_nothing_out() -> None:
    store = make(memory=100)
    store.put(1, response("a", 50))
    assert not store.put(1, response("b", 101))
    assert kept(store, 1, "ab") == "a"


def test_what_is_too_old_is_gone() -> None:
    clock = Clock()
    store = make(clock=clock)
    store.put(1, response("a", 10))
    clock.now = 30
    store.put(2, response("b", 10))
    clock.now = 61
    assert (kept(store, 1, "a"), kept(store, 2, "b")) == ("", "b")
    assert store.state() == (1, 10, 0)
    clock.now = 91
    assert store.state() == (0, 0, 0)


def test_a_deleted_response_gives_its_room_back() -> None:
    store = make()
    store.put(1, response("a", 10))
    with pytest.raises(UnknownResponseError):
        store.delete(2, "a")
    store.delete(1, "a")
    assert store.state() == (0, 0, 0)
    with pytest.raises(UnknownResponseError, match="no response 'a' is stored"):
        store.delete(1, "a")


def test_a_store_of_none_keeps_none_and_a_small_one_is_refused() -> None:
    assert not make(count=0).keeps
    assert not make(count=0).put(1, response("a", 10))
    with pytest.raises(InvalidOptionError, match="max_stored_response_memory must be at least twice max_body_size"):
        ServerOptions(max_body_size=100, max_stored_response_memory=199)
