"""Reports the phases of a build to its caller, and times each of them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

Progress = Callable[[str, int, int], None]
"""Gets (phase, done, total): done 0 when a phase starts, then as it goes on; total 0 if it is unknown."""

Advance = Callable[[int, int], None]
"""Gets (done, total) of one phase, or of a part of one."""


@dataclass
class Phases:
    """Times every phase of a build and reports it to `progress`.

    begin: the moment of time.perf_counter at which the build began. The time between two phases counts as time of the
    second, so that the sum of all phases is the time from `begin` to the end of the last.
    """

    progress: Progress
    begin: float = field(default_factory=time.perf_counter)
    seconds: dict[str, float] = field(default_factory=dict)
    """The time of every phase so far, in seconds."""

    def __post_init__(self) -> None:
        self._end = self.begin

    @classmethod
    def since(cls, begin: float | None, progress: Progress | None) -> Phases:
        """Returns the phases of a build that began at `begin`, by default now; the time since is the phase "start"."""
        tell = progress or (lambda phase, done, total: None)
        if begin is None:
            return cls(tell)
        phases = cls(tell, begin)
        phases.mark("start")
        return phases

    @property
    def total(self) -> float:
        """Returns the seconds from `begin` to the end of the last phase."""
        return self._end - self.begin

    @contextmanager
    def run(self, name: str) -> Iterator[Advance]:
        """Times one phase; gives a function of (done, total) for use inside it."""
        self.progress(name, 0, 0)
        yield lambda done, total: self.progress(name, done, total)
        self.mark(name)

    def mark(self, name: str) -> None:
        """Ends phase `name`, which began at the end of the phase before."""
        now = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._end
        self._end = now


def process_start() -> float:
    """Returns the start of this process as a moment of time.perf_counter; without /proc, the present moment."""
    now = time.perf_counter()
    try:
        started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return now
    return now - max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK"))
