"""Measures what an exchange between two ranks of this machine takes, through the memory that they share."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from tensorwright.runtime.engine import native
from tensorwright.runtime.engine.ranks.local import rank_memory

SMALL, LARGE = 64, 4 << 20
"""Bytes of the two kinds of messages that are measured."""
ROUNDS = 50


@dataclass(frozen=True)
class RankLink:
    """rate: bytes per second, one way, while both ranks send. seconds: what an exchange takes beside its bytes."""

    rate: float
    seconds: float


def measure_link(rounds: int = ROUNDS) -> RankLink:
    """Measures for less than a second, during which nothing else should run. The medians of `rounds` exchanges count.

    The two ranks are threads of this process. Raises EngineError,
    OutOfMemoryError and RankError.
    """
    runtime = native.load_module()

    def seconds(count: int) -> float:
        path = rank_memory()
        try:
            return float(statistics.median(runtime.exchange_seconds(str(path), count, rounds)))
        finally:
            path.unlink(missing_ok=True)

    small, large = seconds(SMALL), seconds(LARGE)
    return RankLink((LARGE - SMALL) / max(large - small, 1e-9), small)
