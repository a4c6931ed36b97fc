"""Finds how many replicas meet given goals: the least number at which enough requests are good.

More replicas are taken to serve no worse, so the search doubles the number until it is enough, and halves the gap
between enough and too few.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tensorwright.options.simulate import MAX_REPLICAS


@dataclass(frozen=True)
class Found:
    """An answer. replicas: None if not even the most would do. tried: the share of good requests by number of
    replicas."""

    replicas: int | None
    tried: dict[int, float]


def find_replicas(share_of_good: Callable[[int], float], goal: float, most: int = MAX_REPLICAS) -> Found:
    """Returns the least number of replicas with a share of at least `goal`. share_of_good: simulates a number of
    them."""
    tried: dict[int, float] = {}

    def enough(replicas: int) -> bool:
        tried[replicas] = share_of_good(replicas)
        return tried[replicas] >= goal

    low, high = 0, 1
    while not enough(high):
        if high == most:
            return Found(None, tried)
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return Found(high, tried)
