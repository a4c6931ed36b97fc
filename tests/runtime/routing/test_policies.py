"""Routing policies: who gets a request, with what they know, and that what they know is bounded."""

from __future__ import annotations

from collections import Counter

import pytest

from tensorwright.errors import InvalidOptionError
from tensorwright.options.ray import ROUTING
from tensorwright.runtime.routing.least_loaded import LeastLoaded
from tensorwright.runtime.routing.policies import make_policy
from tensorwright.runtime.routing.policy import ReplicaLoad, RoutingPolicy
from tensorwright.runtime.routing.prefix_affinity import MAX_HOLDERS, PrefixAffinity


def load(name: str, requests: int = 0, kv_usage: float = 0.0, places: int = 4) -> ReplicaLoad:
    return ReplicaLoad(name, requests, places, kv_usage)


def send(policy: RoutingPolicy, replicas: list[ReplicaLoad], keys: tuple[int, ...] = ()) -> str:
    name = policy.choose(replicas, keys)
    policy.sent(name, keys)
    return name


def test_pressure_is_the_fuller_of_places_and_cache() -> None:
    assert load("a", 2).pressure == 0.5
    assert load("a", 2, kv_usage=0.9).pressure == 0.9
    assert load("a", 6).pressure == 1.5


@pytest.mark.parametrize("name", ROUTING)
def test_the_least_full_one_gets_a_prompt_that_nobody_knows(name: str) -> None:
    policy = make_policy(name)
    assert policy.choose([load("a", 3), load("b", 1), load("c", 2)], ()) == "b"
    assert policy.choose([load("a", 3), load("b", 1, kv_usage=0.9), load("c", 2)], ()) == "c"
    assert policy.choose([load("a", 3), load("b", 1, kv_usage=0.9), load("c", 2)], (5, 6)) == "c"


@pytest.mark.parametrize("name", ROUTING)
def test_equal_replicas_take_turns(name: str) -> None:
    policy = make_policy(name)
    replicas = [load("a"), load("b"), load("c")]
    assert Counter(send(policy, replicas) for _ in range(9)) == {"a": 3, "b": 3, "c": 3}


@pytest.mark.parametrize("name", ROUTING)
def test_choosing_alone_changes_nothing(name: str) -> None:
    policy = make_policy(name)
    replicas = [load("a"), load("b")]
    assert len({policy.choose(replicas, keys) for keys in [()] * 4}) == 1
    assert len({policy.choose(replicas, (7,)) for _ in range(4)}) == 1


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(InvalidOptionError, match="routing must be one of prefix, least-loaded, got 'x'"):
        make_policy("x")


class TestPrefix:
    def test_a_beginning_finds_the_replica_that_had_it(self) -> None:
        policy = PrefixAffinity()
        replicas = [load("a"), load("b"), load("c")]
        policy.sent("b", (1, 2, 3))
        policy.sent("c", (1, 2, 9))
        assert policy.choose(replicas, (1, 2, 3, 4)) == "b"
        assert policy.choose(replicas, (1, 2, 9)) == "c"

    def test_of_several_holders_the_least_full_one_is_chosen(self) -> None:
        policy = PrefixAffinity()
        policy.sent("a", (1,))
        policy.sent("b", (1,))
        assert policy.choose([load("a", 1), load("b", 2), load("c")], (1,)) == "a"
        assert policy.choose([load("a", 2), load("b", 1), load("c")], (1,)) == "b"

    def test_a_holder_that_is_too_full_is_passed_over(self) -> None:
        policy = PrefixAffinity(slack=0.5)
        policy.sent("a", (1,))
        assert policy.choose([load("a", 2), load("b")], (1,)) == "a"
        assert policy.choose([load("a", 3), load("b")], (1,)) == "b"
        assert policy.choose([load("a", kv_usage=0.6), load("b")], (1,)) == "b"
        assert policy.choose([load("a", 5), load("b", 4)], (1,)) == "a", "only what is left of it counts"

    def test_routers_that_know_nothing_agree(self) -> None:
        replicas = [load(name) for name in "abcdef"]
        one, other = PrefixAffinity(), PrefixAffinity()
        found = [one.choose(replicas, (key,)) for key in range(200)]
        assert found == [other.choose(list(reversed(replicas)), (key,)) for key in range(200)]
        assert min(Counter(found).values()) > 10, "prompts spread over all replicas"

    def test_a_replica_more_or_less_moves_few_beginnings(self) -> None:
        replicas = [load(name) for name in "abcde"]
        policy = PrefixAffinity()
        moved = sum(policy.choose(replicas, (key,)) != policy.choose(replicas[:-1], (key,)) for key in range(500))
        assert moved == sum(policy.choose(replicas, (key,)) == "e" for key in range(500))

    def test_what_has_gone_is_forgotten(self) -> None:
        policy = PrefixAffinity()
        for key in range(100):
            policy.sent("gone", (key,))
        policy.removed("gone")
        policy.sent("a", (3,))
        assert policy._holders == {3: ("a",)}
        assert policy.choose([load("a"), load("b")], (3,)) == "a"

    def test_memory_is_bounded(self) -> None:
        policy = PrefixAffinity(max_remembered=10)
        for key in range(100):
            policy.sent("a", (key,))
        assert list(policy._holders) == list(range(90, 100))
        for number in range(2 * MAX_HOLDERS):
            policy.sent(f"r{number}", (99,))
        assert len(policy._holders[99]) == MAX_HOLDERS


def test_least_loaded_looks_at_no_prompt() -> None:
    policy = LeastLoaded()
    policy.sent("a", (1,))
    assert policy.choose([load("a"), load("b")], (1,)) == "b"
    policy.removed("a")
    assert policy._last == {}
