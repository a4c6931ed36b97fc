"""Sends each request to the replica that is least full, whatever its prompt."""

from __future__ import annotations

from collections.abc import Sequence

from tensorwright.runtime.routing.policy import ReplicaLoad, least_pressed


class LeastLoaded:
    """A RoutingPolicy. Of several replicas that are equally full, it chooses the one that it sent nothing to for the
    longest time."""

    def __init__(self) -> None:
        self._sent = 0
        self._last: dict[str, int] = {}  # name of a replica -> the number of the last request that was sent there

    def choose(self, replicas: Sequence[ReplicaLoad], keys: Sequence[int]) -> str:
        return min(least_pressed(replicas), key=lambda replica: self._last.get(replica.name, 0)).name

    def sent(self, name: str, keys: Sequence[int]) -> None:
        self._sent += 1
        self._last[name] = self._sent

    def removed(self, name: str) -> None:
        self._last.pop(name, None)
