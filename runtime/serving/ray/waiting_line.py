"""Lets as many requests pass at once as the replicas have room for, and keeps the others in order."""

from __future__ import annotations

import asyncio
import heapq


class WaitingLine:
    """A line in which requests of higher priority stand first, and those of equal priority in the order of their
    numbers. Only one event loop may use it. room: how many requests may have passed and not left."""

    def __init__(self, room: int):
        self._room = room
        self._passed = 0
        self._line: list[tuple[int, int, asyncio.Future[None]]] = []

    def __len__(self) -> int:
        return sum(not future.done() for _, _, future in self._line)

    async def enter(self, priority: int, number: int) -> None:
        """Returns when the request may pass. Whoever passed must `leave` later; whoever is cancelled meanwhile must
        not."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._line, (-priority, number, future))
        self._admit()
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.leave()
            raise

    def leave(self) -> None:
        self._passed -= 1
        self._admit()

    def set_room(self, room: int) -> None:
        """Changes the room. Those who have passed already stay."""
        self._room = room
        self._admit()

    def _admit(self) -> None:
        while self._line and (self._passed < self._room or self._line[0][2].done()):
            _, _, future = heapq.heappop(self._line)
            if not future.done():
                self._passed += 1
                future.set_result(None)
