"""Waiting for what another thread or process does, as long as it takes and no longer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(holds: Callable[[], T], seconds: float = 20, what: str = "it") -> T:
    """Asks again and again until `holds()` is true, and returns what that gave."""
    deadline = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < deadline, f"{what} does not hold after {seconds} seconds"
        time.sleep(0.005)
    return found
