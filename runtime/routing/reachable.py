"""Keeps which engines could be reached lately."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence


class Reachable:
    """The engines that are not passed over. pause: the seconds for which an engine is passed over after a failure.
    clock: returns the time in seconds."""

    def __init__(self, engines: Sequence[str], pause: float, clock: Callable[[], float] = time.monotonic):
        self._until = dict.fromkeys(engines, float("-inf"))
        self._pause, self._clock = pause, clock

    def failed(self, name: str) -> None:
        self._until[name] = self._clock() + self._pause

    def answered(self, name: str) -> None:
        self._until[name] = float("-inf")

    def now(self) -> list[str]:
        """Returns the engines that may be asked; an engine is asked again when its pause is over."""
        now = self._clock()
        return [name for name, until in self._until.items() if until <= now]
