"""Sends a request to the replica that has most of its prompt in the prefix cache, unless that replica is too full.

Prompts that no replica has seen go to the least full replicas. Among equally full ones the first block of the prompt
decides (highest random weight), so that several routers that know nothing of each other choose the same replica.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import xxhash

from tensorwright.runtime.routing.least_loaded import LeastLoaded
from tensorwright.runtime.routing.policy import ReplicaLoad, least_pressed

MAX_REMEMBERED = 1 << 16
"""The most keys whose replicas are remembered; the ones used longest ago are forgotten first."""
MAX_HOLDERS = 4
"""The most replicas that are remembered for one key."""
SLACK = 0.5
"""How much fuller than the least full replica a replica may be and still get requests for its cache's sake."""


class PrefixAffinity:
    """A RoutingPolicy. It remembers which replicas got which beginnings; a replica may have evicted some since."""

    def __init__(self, slack: float = SLACK, max_remembered: int = MAX_REMEMBERED):
        self._slack = slack
        self._max_remembered = max_remembered
        self._holders: OrderedDict[int, tuple[str, ...]] = OrderedDict()  # key -> replicas, the latest first
        self._unkeyed = LeastLoaded()

    def choose(self, replicas: Sequence[ReplicaLoad], keys: Sequence[int]) -> str:
        if not keys:
            return self._unkeyed.choose(replicas, keys)
        most = min(replica.pressure for replica in replicas) + self._slack
        fit = {replica.name: replica for replica in replicas if replica.pressure <= most}
        for key in reversed(keys):
            held = [fit[name] for name in self._holders.get(key, ()) if name in fit]
            if held:
                return min(held, key=lambda replica: replica.pressure).name
        return max(least_pressed(replicas), key=lambda replica: _weight(replica.name, keys[0])).name

    def sent(self, name: str, keys: Sequence[int]) -> None:
        self._unkeyed.sent(name, keys)
        for key in keys:
            others = tuple(other for other in self._holders.get(key, ()) if other != name)
            self._holders[key] = (name, *others)[:MAX_HOLDERS]
            self._holders.move_to_end(key)
        while len(self._holders) > self._max_remembered:
            self._holders.popitem(last=False)

    def removed(self, name: str) -> None:
        self._unkeyed.removed(name)
        for key, holders in list(self._holders.items()):
            if name in holders:
                rest = tuple(other for other in holders if other != name)
                if rest:
                    self._holders[key] = rest
                else:
                    del self._holders[key]


def _weight(name: str, key: int) -> int:
    return xxhash.xxh3_64_intdigest(name.encode(), seed=key)
