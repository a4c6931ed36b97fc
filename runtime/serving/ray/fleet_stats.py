"""Adds up the statistics of an engine's replicas, so that counters never fall when a replica goes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensorwright.runtime.requests import metrics

COUNTERS = (
    *(name for name, metric in metrics.ENGINE.items() if metric.kind == "counter"),
    *metrics.ENDED,
    "invariant_violations",
)
"""The entries of LLM.get_stats() that only grow."""
GAUGES = tuple(name for name in metrics.ENGINE if name not in COUNTERS and name != "stalled_seconds")


class FleetStats:
    """The sum of LLM.get_stats() over replicas that come and go. A replica that has gone counts with its last counters,
    and with nothing else."""

    def __init__(self) -> None:
        self._present: dict[str, Mapping[str, Any]] = {}
        self._gone = dict.fromkeys(COUNTERS, 0)
        self._shape: list[dict[str, Any]] = []  # the cache groups of one replica

    def update(self, present: Mapping[str, Mapping[str, Any]]) -> None:
        """present: the statistics of all replicas that there are and that have reported, by name."""
        for name in self._present.keys() - present.keys():
            for counter in COUNTERS:
                self._gone[counter] += self._present[name][counter]
        self._present = dict(present)
        for stats in present.values():
            self._shape = [dict(group) for group in stats["groups"]]

    @property
    def least_stalled(self) -> float:
        """The `stalled_seconds` of the replica that is stalled least; 0 without replicas."""
        return min((stats["stalled_seconds"] for stats in self._present.values()), default=0.0)

    def total(self) -> dict[str, Any]:
        """Returns the sum, in the form of LLM.get_stats(). stalled_seconds is that of the replica stalled longest."""
        present = list(self._present.values())
        counted = {name: self._gone[name] + sum(stats[name] for stats in present) for name in COUNTERS}
        gauges = {name: sum(stats[name] for stats in present) for name in GAUGES}
        stalled = max((stats["stalled_seconds"] for stats in present), default=0.0)
        groups = [
            {
                **shape,
                **{name: sum(stats["groups"][index][name] for stats in present) for name in metrics.BLOCKS},
            }
            for index, shape in enumerate(self._shape)
        ]
        return {**counted, **gauges, "stalled_seconds": stalled, "groups": groups}
