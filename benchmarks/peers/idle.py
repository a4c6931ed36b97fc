"""Checks whether the machine is free before a run and each round, and how much others worked during a job."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

LIMIT = 0.05
"""The greatest fraction of all cores' time that other processes may use."""


def busy_seconds(stat: str, tick: float) -> tuple[float, float]:
    """Returns (busy, total) seconds of all cores since boot, from /proc/stat; time that other guests took is busy."""
    fields = [int(x) / tick for x in stat.splitlines()[0].split()[1:9]]
    return sum(fields) - fields[3] - fields[4], sum(fields)


def read_busy() -> tuple[float, float]:
    return busy_seconds(Path("/proc/stat").read_text(), os.sysconf("SC_CLK_TCK"))


def others_fraction(before: tuple[float, float], after: tuple[float, float], own: float) -> float:
    """Returns the fraction of all cores' time between two readings that `own` does not account for."""
    total = after[1] - before[1]
    return max(0.0, (after[0] - before[0] - own) / total) if total > 0 else 0.0


@dataclass(frozen=True)
class Idleness:
    """busy: the fraction of all cores at work; load: the load average of the last minute, which lags."""

    busy: float
    load: float

    @property
    def idle(self) -> bool:
        return self.busy <= LIMIT

    def __str__(self) -> str:
        return f"{self.busy:.0%} of all cores at work, load average {self.load:.2f}"


def look(seconds: float = 2.0) -> Idleness:
    """Watches the machine for a while, in which this process sleeps and its workers are stopped."""
    before = read_busy()
    time.sleep(seconds)
    return Idleness(others_fraction(before, read_busy(), 0.0), os.getloadavg()[0])


def wait_until_idle(patience: float, seconds: float = 2.0) -> Idleness:
    """Returns the first idle look, or the last one when patience is over."""
    deadline = time.monotonic() + patience
    while True:
        seen = look(seconds)
        if seen.idle or time.monotonic() >= deadline:
            return seen
