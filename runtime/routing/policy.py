"""Says what a routing policy is: it chooses the replica of a request, from the load of all replicas and the prompt.

A policy is pure Python and knows no network, so that a server and a simulation can run the same one. It is not
thread-safe; its owner calls it from one thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class ReplicaLoad:
    """What a router knows of one replica when it chooses.

    name: no other replica has it. requests: the requests that the replica has, running and waiting. places: how many
    completions it can run at once. kv_usage: the share of its KV blocks that requests use, from 0 to 1.
    """

    name: str
    requests: int
    places: int
    kv_usage: float = 0.0

    @property
    def pressure(self) -> float:
        """How full the replica is. 1 means that its places or its KV cache are used up; above 1 requests wait."""
        return max(self.requests / self.places, self.kv_usage)


class RoutingPolicy(Protocol):
    """Chooses replicas. `choose` changes nothing: whoever sends the request then calls `sent`."""

    def choose(self, replicas: Sequence[ReplicaLoad], keys: Sequence[int]) -> str:
        """Returns the name of the replica that should get a request.

        replicas: at least one. keys: the keys of the prompt's beginning, shortest beginning first (prefix_keys.py).
        """
        ...

    def sent(self, name: str, keys: Sequence[int]) -> None:
        """Notes that the replica of this name got a request whose prompt has these keys."""
        ...

    def removed(self, name: str) -> None:
        """Notes that there is no replica of this name any more, and nothing of its cache."""
        ...


def least_pressed(replicas: Sequence[ReplicaLoad]) -> list[ReplicaLoad]:
    """Returns the replicas that nobody is less full than. There is at least one."""
    least = min(replica.pressure for replica in replicas)
    return [replica for replica in replicas if replica.pressure <= least]
