"""Sends requests to each replica in its turn, however full it is: what other policies are compared with."""

from __future__ import annotations

from collections.abc import Sequence

from tensorwright.runtime.routing.policy import ReplicaLoad


class RoundRobin:
    """A RoutingPolicy. The turns follow the order in which the replicas are given."""

    def __init__(self) -> None:
        self._sent = 0

    def choose(self, replicas: Sequence[ReplicaLoad], keys: Sequence[int]) -> str:
        return replicas[self._sent % len(replicas)].name

    def sent(self, name: str, keys: Sequence[int]) -> None:
        self._sent += 1

    def removed(self, name: str) -> None:
        """The others go on in their turns."""
