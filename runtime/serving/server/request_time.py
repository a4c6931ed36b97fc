"""Counts the requests under way, and keeps the deadline of each."""

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
        """Counts a request, for which draining waits, while the context is open."""
        self.in_flight += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.in_flight -= 1
            if not self.in_flight:
                self._idle.set()

    async def wait_idle(self, timeout: float) -> bool:
        """Waits until no request is under way. Returns False if some are left after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True


GRACE = 5.0  # the seconds for the engine's step and for writing the answer


class Deadline:
    """The deadline of one request. seconds: the time that the request has from now on. guard: the timeout that cancels
    the request's handler."""

    def __init__(self, seconds: float, guard: asyncio.Timeout):
        self._at = time.monotonic() + seconds
        self._guard = guard

    def bound(self, params: SamplingParams) -> SamplingParams:
        """Returns the parameters with a timeout that ends the engine's request at the deadline, with its output so far.
        The request must go to the engine now."""
        left = max(0.0, self._at - time.monotonic())
        return replace(params, timeout=left if params.timeout is None else min(left, params.timeout))

    def leave_to_engine(self) -> None:
        """Leaves it to the engine to end the request in time. The guard's timeout moves GRACE seconds later, in case
        that the engine does not."""
        end = self._guard.when()
        if end is not None:
            self._guard.reschedule(end + GRACE)
