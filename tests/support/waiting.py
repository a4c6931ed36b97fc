"""Waiting for what another thread or process does, as long as it takes and no longer."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

PATIENCE = 240.0
"""Seconds after which a test says that what it waits for does not come. Only a test that fails waits so long, so this
suits a machine that is twenty times slower than usual, or as busy. pyproject.toml gives a whole test more."""


def wait_until(holds: Callable[[], T], what: str = "it") -> T:
    """Asks again and again until `holds()` is true, and returns what that gave."""
    deadline = time.monotonic() + PATIENCE
    while not (found := holds()):
        assert time.monotonic() < deadline, f"{what} does not hold after {PATIENCE:g} seconds"
        time.sleep(0.005)
    return found


def one_try_is_enough(test: Callable[..., None]) -> Callable[..., None]:
    """Of five, for a test whose bounds are times: what else runs on the machine makes times only longer."""

    @functools.wraps(test)
    def tried(*arguments: Any, **fixtures: Any) -> None:
        for _ in range(4):
            try:
                return test(*arguments, **fixtures)
            except AssertionError as error:
                print(f"another try: {error}")  # pytest shows it if the last one fails too
        return test(*arguments, **fixtures)

    return tried
