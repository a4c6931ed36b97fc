"""Chooses which engine answers a request: the one with the fewest answers under way."""

from __future__ import annotations

from collections.abc import Collection, Sequence


class DecodeChoice:
    """The answers under way. It belongs to one thread. engines: their names."""

    def __init__(self, engines: Sequence[str]):
        self._running = dict.fromkeys(engines, 0)
        self._turn = 0

    def choose(self, among: Collection[str]) -> str:
        """Returns the engine with the fewest answers under way. among: the engines to choose from, at least one. Of
        equal engines each has its turn."""
        names = [name for name in self._running if name in among]
        self._turn += 1
        start = self._turn % len(names)
        return min(names[start:] + names[:start], key=lambda name: self._running[name])

    def begin(self, name: str) -> None:
        self._running[name] += 1

    def end(self, name: str) -> None:
        self._running[name] -= 1

    def running(self, name: str) -> int:
        return self._running[name]
