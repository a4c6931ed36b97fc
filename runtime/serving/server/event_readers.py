"""Lets all who wait for the next events of a prefix cache wait for one reading of it, in an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable

from tensorwright.runtime.requests.cache_events import CacheEvents

PAUSE = 0.1
"""The seconds between two looks at an engine that had nothing new."""

Look = Callable[[], Awaitable[CacheEvents]]


class EventReaders:
    """Those who read events of the prefix caches of a server. open: how many streams of events there are."""

    def __init__(self) -> None:
        self.open = 0
        self._readings: dict[Hashable, _Reading] = {}

    async def next(
        self, place: Hashable, look: Look, is_over: Callable[[], bool], timeout: float
    ) -> CacheEvents | None:
        """Returns the events behind a place, or None if none has come after `timeout` seconds.

        place: what is read, and behind which event. Who has read everything stands at the same place as all others who
        have, and those who name one place wait for one reading. look: looks for events behind the place; the first one
        who waits there lends it to all, and it is called every PAUSE until it finds some. is_over: whether all who wait
        are to have what there is, which is then nothing. Raises what `look` raises.
        """
        reading = self._readings.get(place)
        if reading is None:
            reading = self._readings[place] = _Reading(look, is_over)
        reading.waiting += 1
        try:
            await asyncio.wait({reading.task}, timeout=timeout)
            return reading.task.result() if reading.task.done() else None
        finally:
            reading.waiting -= 1
            if reading.waiting == 0:
                del self._readings[place]
                reading.task.cancel()


class _Reading:
    """The events behind one place, once there are some. waiting: how many wait for them."""

    def __init__(self, look: Look, is_over: Callable[[], bool]):
        self.waiting = 0
        self.task = asyncio.ensure_future(_read(look, is_over))
        # An exception that comes when the last one has just gone is nobody's.
        self.task.add_done_callback(lambda task: task.cancelled() or task.exception())


async def _read(look: Look, is_over: Callable[[], bool]) -> CacheEvents:
    while True:
        found = await look()
        if found.events or found.more or found.lost != 0 or is_over():
            return found
        await asyncio.sleep(PAUSE)
