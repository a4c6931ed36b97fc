"""Computes how many replicas a load needs, from the queues and the KV caches of the replicas that there are."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tensorwright.runtime.routing.policy import ReplicaLoad

MARGIN = 0.1
"""A replica fewer is wanted only if the rest would stay so much below the target, so that the number does not swing."""


def wanted_replicas(
    replicas: Sequence[ReplicaLoad], queued: float, target: float, least: int, most: int, present: int
) -> int:
    """Returns the number of replicas with which each would be as full as `target`.

    A replica is as full as its `pressure` says: the larger of its requests per place and its use of the KV cache.

    replicas: those that have reported. queued: requests that no replica has yet. target: a pressure above 0. least,
    most: the bounds of the result. present: the replicas that there are or that are starting, which is the answer as
    long as none has reported.
    """
    if not replicas:
        return min(most, max(least, present))
    places = sum(replica.places for replica in replicas) / len(replicas)
    total = sum(replica.pressure for replica in replicas) + queued / places
    wanted = math.ceil(total / target)
    if wanted < present:
        wanted = min(present, math.ceil(total / (target * (1 - MARGIN))))
    return min(most, max(least, wanted))
