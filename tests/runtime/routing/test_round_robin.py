"""Turns of replicas, whatever their loads are."""

from __future__ import annotations

from tensorwright.runtime.routing.policy import ReplicaLoad
from tensorwright.runtime.routing.round_robin import RoundRobin


def test_each_replica_has_its_turn_however_full_it_is() -> None:
    policy = RoundRobin()
    replicas = [ReplicaLoad("a", 90, 4), ReplicaLoad("b", 0, 4), ReplicaLoad("c", 7, 4)]
    assert policy.choose(replicas, ()) == policy.choose(replicas, ()) == "a", "only what was sent counts"
    chosen = []
    for _ in range(5):
        chosen.append(policy.choose(replicas, ()))
        policy.sent(chosen[-1], ())
    assert chosen == ["a", "b", "c", "a", "b"]
    policy.removed("b")
    assert policy.choose(replicas[:2], ()) == "b"
