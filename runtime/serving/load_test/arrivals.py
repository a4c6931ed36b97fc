"""When requests are sent: seconds after the start of the load test, ascending."""

from __future__ import annotations

import numpy as np

ARRIVALS = ("poisson", "burst")


def poisson_times(count: int, rate: float, rng: np.random.Generator) -> list[float]:
    """Independent arrivals, `rate` of them per second: the gaps are exponential. The first comes after such a gap."""
    return np.cumsum(rng.exponential(1.0 / rate, count)).tolist()


def burst_times(count: int, rate: float | None, size: int | None) -> list[float]:
    """`size` at the same moment, `rate` per second in the mean; all at once without a size or a rate."""
    if size is None or rate is None:
        return [0.0] * count
    return [(i // size) * (size / rate) for i in range(count)]
