"""A warning that may come thousands of times in a second, as a line of the log every few seconds."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any


class SlowLog:
    """The first is written at once, the next after `seconds`, with the number of those left out in between."""

    def __init__(self, logger: logging.Logger, seconds: float = 10.0, clock: Callable[[], float] = time.monotonic):
        self._logger = logger
        self._seconds = seconds
        self._clock = clock
        self._quiet_until = float("-inf")
        self._left_out = 0

    def warn(self, message: str, **facts: Any) -> None:
        now = self._clock()
        if now < self._quiet_until:
            self._left_out += 1
            return
        self._quiet_until = now + self._seconds
        if self._left_out:
            facts["left_out"] = self._left_out
            self._left_out = 0
        self._logger.warning(message, extra={"facts": facts})
