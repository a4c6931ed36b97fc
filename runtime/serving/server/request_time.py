"""Which requests are under way, and when the time of each is up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from tensorwright.runtime.requests.sampling_params import SamplingParams


class Lifecycle:
    def __init__(self) -> None:
        self.draining = False
        self.in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def request(self) -> Iterator[None]:
        """Around a request that draining waits for."""
        self.in_flight += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.in_flight -= 1
            if not self.in_flight:
                self._idle.set()

    async def wait_idle(self, timeout: float) -> bool:
        """False if requests are left after so many seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True


GRACE = 5.0  # seconds: for the engine's step, and for an answer to be put together


class Deadline:
    """Of one request. seconds: that it has from now on. guard: what ends it from outside."""

    def __init__(self, seconds: float, guard: asyncio.Timeout):
        self._at = time.monotonic() + seconds
        self._guard = guard

    def bound(self, params: SamplingParams) -> SamplingParams:
        """For a request that the engine gets now: it ends in time, with what it has."""
        left = max(0.0, self._at - time.monotonic())
        return replace(params, timeout=left if params.timeout is None else min(left, params.timeout))

    def leave_to_engine(self) -> None:
        """From here on the engine ends it; the guard only if even that does not come, GRACE later."""
        end = self._guard.when()
        if end is not None:
            self._guard.reschedule(end + GRACE)
