"""Lets a routing policy choose among the replicas that Ray Serve has for a request.

Ray Serve makes one router for each process that sends requests. It asks the router for replicas in the order in which
they are to be tried: one that is full, or that has died, is passed over. Ray Serve copies this module by value into the
processes that use it, so the module has no state of its own.
"""

from __future__ import annotations

from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from tensorwright.runtime.routing.policies import make_policy
from tensorwright.runtime.routing.policy import ReplicaLoad
from tensorwright.runtime.serving.ray.live_routers import note_router
from tensorwright.runtime.serving.ray.wire import RemoteRequest


class PolicyRouter(RequestRouter):
    """A router of Ray Serve that asks a RoutingPolicy."""

    # A replica computes with all processors that it has, so it may take longer to say how many requests it has than
    # Ray Serve's tenth of a second, after which the request would go to another replica.
    queue_len_response_deadline_s = 1.0

    def initialize_state(self, routing: str) -> None:  # type: ignore[override]
        """routing: the policy's name."""
        self._policy = make_policy(routing)
        self._on_their_way = OnTheirWay()
        note_router(self.app_name, self)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True  # Between two rounds of tries it waits a little.
        request = request_of(pending_request)
        if not candidate_replicas or pending_request is None or request is None:
            return [candidate_replicas]
        same = [replica for replica in candidate_replicas if request.engine in (None, engine_of(replica))]
        fit = same or candidate_replicas  # A replica of another engine refuses the request, and says why.
        self._on_their_way.forget(pending_request)
        chosen = self._policy.choose([self._load(replica) for replica in fit], request.keys)
        self._on_their_way.note(chosen, pending_request)
        self._policy.sent(chosen, request.keys)
        first = [replica for replica in fit if name_of(replica.replica_id) == chosen]
        return [first, [replica for replica in fit if replica not in first]]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        self._on_their_way.forget(pending_request)
        if (request := request_of(pending_request)) is not None:
            self._policy.sent(name_of(replica_id), request.keys)  # It may be another one than was chosen.

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        super().on_replica_actor_died(replica_id)
        self._policy.removed(name_of(replica_id))

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        before = set(self.curr_replicas)
        super().update_replicas(replicas)
        for replica_id in before - set(self.curr_replicas):
            self._policy.removed(name_of(replica_id))

    def _load(self, replica: RunningReplica) -> ReplicaLoad:
        """Returns the load of a replica: the requests that it has by this router's own count, which is exact, or by the
        replica's last report."""
        stats = replica.routing_stats or {}
        counted = self.replica_queue_len_cache.get(replica.replica_id)
        present = int(stats.get("requests", 0)) if counted is None else counted
        name = name_of(replica.replica_id)
        return ReplicaLoad(
            name=name,
            requests=present + self._on_their_way.count(name),
            places=int(stats.get("places", replica.max_ongoing_requests)),
            kv_usage=stats.get("kv_usage", 0.0),
        )


class OnTheirWay:
    """Counts the requests for which a replica was chosen and that it does not have yet, so that requests which come
    together do not all choose the same one."""

    def __init__(self) -> None:
        self._chosen: dict[str, tuple[str, PendingRequest]] = {}  # id of a request -> its replica's name, itself

    def note(self, name: str, pending: PendingRequest) -> None:
        self._chosen[pending.metadata.internal_request_id] = name, pending

    def forget(self, pending: PendingRequest) -> None:
        self._chosen.pop(pending.metadata.internal_request_id, None)

    def count(self, name: str) -> int:
        for identity, (_, pending) in list(self._chosen.items()):
            if pending.future.cancelled():
                del self._chosen[identity]
        return sum(chosen == name for chosen, _ in self._chosen.values())


def request_of(pending: PendingRequest | None) -> RemoteRequest | None:
    """Returns the request that waits for a replica, or None if it is none of EngineReplica.generate."""
    first = pending.args[0] if pending is not None and pending.args else None
    return first if isinstance(first, RemoteRequest) else None


def name_of(replica_id: ReplicaID) -> str:
    return str(replica_id.unique_id)


def engine_of(replica: RunningReplica) -> str | None:
    """Returns the engine of a replica, as in ReplicaFacts."""
    return replica.replica_metadata.get("engine")
