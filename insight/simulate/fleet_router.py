"""Asks a policy of runtime/routing where a simulated request goes, and counts what each replica has.

A policy knows of a request what a live router knows: the keys of its prompt's blocks, and no length. It knows of a
replica how many requests it has; the use of KV caches is not told.
"""

from __future__ import annotations

from collections.abc import Callable

from tensorwright.insight.estimate.subject import Progress
from tensorwright.insight.simulate.traffic import Traffic
from tensorwright.runtime.routing.policies import POLICIES
from tensorwright.runtime.routing.policy import ReplicaLoad, RoutingPolicy
from tensorwright.runtime.routing.prefix_keys import MAX_KEYS
from tensorwright.runtime.routing.round_robin import RoundRobin

ROUTERS: dict[str, Callable[[], RoutingPolicy]] = {"round-robin": RoundRobin, **POLICIES}
"""The policies by the names that options have: those of a live router, and one that they are compared with."""
REPORT_EVERY = 1000
"""The arrivals between two reports of progress."""


class FleetRouter:
    """The router of one simulated fleet. places: the sequences that a replica runs at once. block_size: the tokens for
    which there is a key."""

    def __init__(
        self, name: str, replicas: int, places: int, block_size: int, traffic: Traffic, progress: Progress | None = None
    ):
        self._policy = ROUTERS[name]()
        self._keyed = name == "prefix"
        self._loads = [ReplicaLoad(str(number), 0, places) for number in range(replicas)]
        self._places, self._block_size = places, block_size
        self._prompts = traffic.prompts.tolist() if self._keyed else []
        self._prefixes, self._shared = traffic.prefixes.tolist(), traffic.prefix_tokens.tolist()
        self._conversations = traffic.conversations.tolist()
        self._sent: dict[int, int] = {}  # request -> its replica
        self._progress, self._count = progress, len(traffic)
        self._phase = f"simulating {replicas} replica{'s' if replicas > 1 else ''}"

    def choose(self, index: int) -> int:
        """Returns the replica of request number `index`, and counts it there."""
        keys = self._keys(index) if self._keyed else ()
        name = self._policy.choose(self._loads, keys)
        self._policy.sent(name, keys)
        chosen = self._sent[index] = int(name)
        self._add(chosen, 1)
        if self._progress is not None and index % REPORT_EVERY == 0:
            self._progress(self._phase, index, self._count)
        return chosen

    def finished(self, index: int) -> None:
        """The request has ended, or was refused."""
        self._add(self._sent.pop(index), -1)

    def _add(self, replica: int, requests: int) -> None:
        load = self._loads[replica]
        self._loads[replica] = ReplicaLoad(load.name, load.requests + requests, self._places)

    def _keys(self, index: int) -> tuple[int, ...]:
        """Returns a number for each block of the prompt, the same for blocks of the same common beginning and of the
        same conversation. Numbers of blocks behind the common beginning are odd."""
        count = min((self._prompts[index] - 1) // self._block_size, MAX_KEYS)
        shared = min(self._shared[index] // self._block_size, count)
        prefix = self._prefixes[index]
        common = tuple((prefix * MAX_KEYS + block) * 2 for block in range(shared))
        conversation = self._conversations[index]
        return common + tuple((conversation * MAX_KEYS + block) * 2 + 1 for block in range(shared, count))
