"""When the time of a request is up, for who ends it: the engine what it generates, TimeGuard all else."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from tensorwright.runtime.requests.sampling_params import SamplingParams

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
