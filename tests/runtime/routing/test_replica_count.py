"""How many replicas a load needs."""

from __future__ import annotations

import pytest

from tensorwright.runtime.routing.policy import ReplicaLoad
from tensorwright.runtime.routing.replica_count import MARGIN, wanted_replicas


def wanted(*pressures: float, queued: float = 0, least: int = 1, most: int = 10, target: float = 0.5) -> int:
    """Of replicas of 100 places that are so full, and requests that no replica has."""
    replicas = [ReplicaLoad(str(index), round(100 * each), 100) for index, each in enumerate(pressures)]
    return wanted_replicas(replicas, queued, target, least, most, present=max(1, len(pressures)))


@pytest.mark.parametrize(
    ("pressures", "queued", "count"),
    [
        ((0.5, 0.5), 0, 2),
        ((1.0, 1.0), 0, 4),
        ((0.9, 0.2), 0, 3),
        ((1.0,), 150, 5),
        ((0.1, 0.1, 0.1, 0.1), 0, 1),
        ((0.0,), 0, 1),
    ],
)
def test_the_load_is_spread_until_each_is_at_the_target(
    pressures: tuple[float, ...], queued: float, count: int
) -> None:
    assert wanted(*pressures, queued=queued) == count


def test_a_full_cache_counts_like_full_places() -> None:
    full = [ReplicaLoad("a", 1, 100, kv_usage=1.0)]
    assert wanted_replicas(full, 0, 0.5, 1, 10, present=1) == 2


def test_one_fewer_is_wanted_only_with_a_margin() -> None:
    assert wanted(0.34, 0.34, 0.34) == 3
    assert wanted(0.32, 0.32, 0.32) == 3, f"two would be at 0.48, above {0.5 * (1 - MARGIN)}"
    assert wanted(0.29, 0.29, 0.29) == 2


def test_bounds_hold() -> None:
    assert wanted(0.0, least=3) == 3
    assert wanted(9.0, most=4) == 4


def test_nothing_changes_until_a_replica_has_reported() -> None:
    assert wanted_replicas([], 100, 0.5, 1, 10, present=3) == 3
    assert wanted_replicas([], 100, 0.5, 4, 10, present=3) == 4
