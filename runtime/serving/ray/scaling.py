"""Tells Ray Serve how many replicas the load needs, from the queues and KV caches that the replicas report."""

from __future__ import annotations

from typing import Any

from ray.serve.config import AutoscalingContext

from tensorwright.runtime.routing.policy import ReplicaLoad
from tensorwright.runtime.routing.replica_count import wanted_replicas

LOAD = ("requests", "places", "kv_usage")
QUEUED = "queued"
"""The names in EngineReplica.record_autoscaling_stats."""


class ReplicaCountPolicy:
    """An autoscaling policy of Ray Serve. Ray Serve itself waits for scale_up_delay and scale_down_delay.

    target: the pressure that each replica should have. least, most: the bounds of the number of replicas.
    """

    def __init__(self, target: float, least: int, most: int):
        self._target = target
        self._least = least
        self._most = most

    def __call__(self, context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        reported = context.aggregated_metrics or {}
        replicas = []
        for replica in context.running_replicas:
            report = [reported[name][replica] for name in LOAD if replica in reported.get(name, {})]
            if len(report) == len(LOAD):
                requests, places, usage = report
                replicas.append(ReplicaLoad(replica.unique_id, round(requests), round(places), usage))
        queues = list(
            reported.get(QUEUED, {}).values()
        )  # Each replica has heard of the same queues, one after the other.
        wanted = wanted_replicas(
            replicas,
            queued=sum(queues) / max(1, len(queues)) + (context.total_queued_requests or 0.0),
            target=self._target,
            least=self._least,
            most=self._most,
            present=context.target_num_replicas,
        )
        return wanted, {}
