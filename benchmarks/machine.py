"""Describes the processor, and whether other processes use it: the first lines of every benchmark."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path


def busy_fraction(seconds: float = 1.0) -> float:
    """Returns the fraction of all cores' time spent working over the next `seconds`, while this process sleeps."""

    def read() -> tuple[int, int]:
        fields = [int(x) for x in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
        return sum(fields), fields[3] + fields[4]

    total, idle = read()
    time.sleep(seconds)
    total2, idle2 = read()
    return 1 - (idle2 - idle) / max(1, total2 - total)


def wait_until_idle(limit: float = 0.05, patience: float = 300.0) -> float:
    """Waits until the machine is at most `limit` busy. Returns the last reading, which the caller prints."""
    deadline = time.monotonic() + patience
    while True:
        busy = busy_fraction()
        if busy <= limit or time.monotonic() > deadline:
            return busy


def describe() -> dict[str, object]:
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    return {"cpu": model, "cores": os.cpu_count(), "python": platform.python_version()}
