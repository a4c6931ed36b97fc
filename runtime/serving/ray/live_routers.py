"""Knows the routers of this process. Ray Serve makes them, and shows them to nobody."""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary

_routers: WeakValueDictionary[str, Any] = WeakValueDictionary()  # application -> its router (router.py)


def note_router(application: str, router: Any) -> None:
    """Notes the newest router of an application. router: a RequestRouter of Ray Serve."""
    _routers[application] = router


def replicas_of(application: str) -> dict[str, dict[str, Any]]:
    """Returns what each replica of an application reported last (EngineReplica.record_routing_stats), by its name; {}
    for a replica that has not reported yet.

    It asks nobody, so a busy replica does not hold it up: the replicas report to Ray Serve's controller, which tells
    the router. The router exists from the first request on.
    """
    router = _routers.get(application)
    present = [] if router is None else list(router.curr_replicas.values())
    return {str(replica.replica_id.unique_id): replica.routing_stats or {} for replica in present}
