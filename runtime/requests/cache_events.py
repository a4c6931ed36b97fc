"""Reads the events of an engine's prefix cache: which blocks it stores and removes, in the KV cache and in its tiers.

A reader goes on where its last answer ended, which a cursor says. A reader that is too slow is told how many events it
lost, and gets the whole content to start from: an event "cleared", then "stored" for each block. The content comes in
parts while events go on; whoever applies all events in their order has exactly what the engine has.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from tensorwright.errors import InvalidRequestError, TemporarilyUnavailableError, TransferError

EventType = Literal["stored", "removed", "cleared"]
Tier = Literal["cache", "memory", "disk"]
TIERS: tuple[Tier, ...] = get_args(Tier)
"""In the order of `CacheTier` of runtime/core/cache/cache_log.h."""
MAX_READ = 1000
"""The most events of one answer."""
PAGE_TIMEOUT = 10.0
"""The seconds in which the engine's loop must come to a page of the content."""
CURSOR_LENGTH = 128
END = 4
"""The stage of the content's end, as runtime/core/engine/cache_content.h numbers them."""
_START = (0, 0, 0, 0)
_CURSOR = re.compile(r"([0-9a-f]{16})-([0-9]{1,19})(?:-([0-4])-([0-9]{1,19})-([0-9]{1,19})-([0-9]{1,19}))?")
_MOST = 1 << 63


@dataclass(frozen=True)
class CacheEvent:
    """What became of one block of the prefix cache.

    type: "stored" or "removed"; or "cleared", after which nothing is there, until "stored" says so: the events behind
    it tell the whole content. sequence: the number of the event, one more than that of the event before it; events that
    tell the content have the number at which its telling began. tier: where the block is, the KV cache, memory or the
    disk. group: the cache group, a number; a model whose layers have the same window has one. block: the name of the
    block, 32 hexadecimal digits that are made with a secret of the engine from the salt, the adapter and all tokens up
    to the block's end. The other fields are told of blocks that the KV cache stores: parent, the name of the block
    before, None for a first block; token_ids, the tokens of this block; salt, the name of the request's cache_salt,
    None for a request without; adapter, the name under which the adapter is loaded, "" if it is not loaded any more,
    None for the model alone.
    """

    type: EventType
    sequence: int
    tier: Tier = "cache"
    group: int = 0
    block: str = ""
    parent: str | None = None
    token_ids: tuple[int, ...] | None = None
    salt: str | None = None
    adapter: str | None = None


@dataclass(frozen=True)
class CacheEvents:
    """Events, and where to go on.

    events: in their order. next: the cursor with which the events behind these are asked for. lost: how many events
    since the last answer are not told, because the reader was too slow; None means that nobody can say how many, for
    another engine has taken the place of the one that was read. If it is not 0, the events begin with "cleared".
    more: whether there is more to read at once.
    """

    events: tuple[CacheEvent, ...]
    next: str
    lost: int | None
    more: bool


@dataclass(frozen=True)
class _Cursor:
    """epoch: the engine that is read. number: the last event that was read. place: where the next part of the content
    begins; None once all of it was read."""

    epoch: int
    number: int
    place: tuple[int, int, int, int] | None = None

    def __str__(self) -> str:
        return "-".join([f"{self.epoch:016x}", str(self.number), *map(str, self.place or ())])


def read_cache_events(
    feed: Any, after: str | None, limit: int, wait: float, adapters: Mapping[str, str] | None = None
) -> CacheEvents:
    """Returns the next events of an engine. feed: a `_runtime.CacheFeed`. after: `next` of the last answer; None begins
    with the whole content. limit: about the most events that are wanted. wait: the seconds to wait for the first event.
    adapters: the name of each loaded adapter, by its key. Raises InvalidRequestError, TemporarilyUnavailableError if
    the engine's steps leave no time for a page, and QueueFullError if too many others wait for one."""
    if not 1 <= limit <= MAX_READ:
        raise InvalidRequestError(f"limit must be 1 to {MAX_READ} events, got {limit}")
    names = {feed.adapter_name(key): name for key, name in (adapters or {}).items()}
    cursor = None if after is None else _read_cursor(after)
    lost: int | None = 0
    if cursor is not None and cursor.epoch != feed.epoch:
        cursor, lost = None, None
    if cursor is not None and cursor.place is None:
        found, number, lost = feed.read(cursor.number, limit, wait)
        if lost == 0:
            events = tuple(_event(each, names) for each in found)
            return CacheEvents(events, str(_Cursor(cursor.epoch, number)), 0, len(events) == limit)
        cursor = None
    first = cursor is None
    if cursor is None:
        cursor = _Cursor(feed.epoch, feed.begin(), _START)
    assert cursor.place is not None
    try:
        found, place = feed.content(cursor.place, limit, PAGE_TIMEOUT)
    except TransferError:
        raise TemporarilyUnavailableError(
            f"a step took longer than the {PAGE_TIMEOUT:g} seconds in which the content of the prefix cache is read "
            "between two steps; ask again"
        ) from None
    events = tuple(_event(each, names, cursor.number) for each in found)
    if first:
        events = (CacheEvent("cleared", cursor.number), *events)
    following = _Cursor(cursor.epoch, cursor.number, None if place[0] == END else place)
    return CacheEvents(events, str(following), lost, True)


def _read_cursor(text: str) -> _Cursor:
    found = _CURSOR.fullmatch(text)
    if found is None:
        raise InvalidRequestError(f'after must be "next" of an answer with events, got {text!r:.100}')
    epoch, number, *place = found.groups()
    places = None if place[0] is None else tuple(map(int, place))
    if max([int(number), *(places or ())]) >= _MOST:
        raise InvalidRequestError(f'after must be "next" of an answer with events, got {text!r:.100}')
    return _Cursor(int(epoch, 16), int(number), places)  # type: ignore[arg-type]


def _event(found: tuple[Any, ...], adapters: Mapping[str, str], number: int | None = None) -> CacheEvent:
    """number: that of an event which tells a part of the content."""
    own, stored, tier, group, block, parent, salt, adapter, token_ids = found
    return CacheEvent(
        "stored" if stored else "removed",
        own if number is None else number,
        TIERS[tier],
        group,
        block,
        parent,
        None if token_ids is None else tuple(token_ids),
        salt,
        None if adapter is None else adapters.get(adapter, ""),
    )
