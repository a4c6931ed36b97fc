"""Declares the options of `tensorwright serve --ray`: the cluster, the replicas, and how requests find them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tensorwright.options.declare import SECONDS, At, Door, Rule, declare, is_positive, whole_number

ROUTING = ("prefix", "least-loaded")
"""The names of the routing policies in runtime/routing/policies.py."""
MAX_REPLICAS = 4096
_COUNT = whole_number(f"from 1 to {MAX_REPLICAS}", high=MAX_REPLICAS)


def _serve(help: str, flag: str = "", **differing: Any) -> Mapping[Door, At]:
    return {Door.SERVE: At(help, flag, **differing)}


@dataclass(frozen=True)
class RayFields:
    """The options of replicas on Ray Serve.

    ray: whether the engines run as replicas on Ray Serve, and not in the server's process.
    ray_address: the address of a running cluster, or "auto" for the one of this machine; None starts a cluster on this
    machine that ends with the server.
    ray_app: what the names of the applications on the cluster begin with; the engine's name follows. An application of
    that name is taken over: replicas that run the same engine with the same options go on.
    keep_replicas: whether the replicas run on when the server ends.
    replicas: how many replicas each engine has; with max_replicas, the fewest.
    max_replicas: None keeps the number of replicas; otherwise it follows the load.
    target_pressure: how full replicas should be when the number follows the load. A replica is as full as the larger of
    its requests per place of max_batch_size and its share of used KV blocks.
    scale_up_delay, scale_down_delay: for how many seconds another number must have been wanted before it is taken.
    replica_cpus, replica_gpus: what a replica reserves on its machine. replica_cpus None means as many as threads, or 1
    without that. An engine without the option threads has a thread for each whole processor that is reserved.
    routing: how a request finds its replica.
    resume: whether a request whose replica was lost goes on elsewhere from the tokens that it has.
    replica_start_timeout: the seconds in which the first replicas must be ready.
    """

    ray: bool = declare(
        False,
        at=_serve("Run the engines as replicas on Ray Serve, on one machine or several."),
        section="Replicas on Ray",
    )
    ray_address: str | None = declare(
        None,
        str,
        at=_serve(
            'With --ray: address of a running cluster, or "auto". [default: a cluster on this machine, started and '
            "ended with the server]"
        ),
    )
    ray_app: str = declare(
        "tensorwright",
        rule=Rule("a name without spaces", lambda value: bool(value) and value.isprintable() and " " not in value),
        at=_serve("With --ray: what the names of the applications on the cluster begin with; the engine's follows."),
    )
    keep_replicas: bool = declare(
        False, at=_serve("With --ray: let the replicas run on when the server ends, for the next server.")
    )
    replicas: int = declare(
        1, rule=_COUNT, at=_serve("With --ray: replicas of each engine; with --max-replicas the fewest.")
    )
    max_replicas: int | None = declare(
        None,
        int,
        rule=_COUNT,
        at=_serve("With --ray: the most replicas of each engine, as the load asks. [default: the number is fixed]"),
    )
    target_pressure: float = declare(
        0.7,
        rule=Rule("a positive number", is_positive),
        at=_serve("With --max-replicas: how full replicas should be, by requests per place or KV blocks; 1 is full."),
    )
    scale_up_delay: float = declare(
        10.0, rule=SECONDS, at=_serve("With --max-replicas: seconds that more replicas must have been wanted.")
    )
    scale_down_delay: float = declare(
        300.0, rule=SECONDS, at=_serve("With --max-replicas: seconds that fewer replicas must have been wanted.")
    )
    replica_cpus: float | None = declare(
        None,
        float,
        rule=Rule("positive, or None", is_positive),
        at=_serve("With --ray: processors that a replica reserves. [default: --threads, or 1 without it]"),
    )
    replica_gpus: float = declare(
        0.0,
        rule=Rule("0 or more", lambda value: 0 <= value < math.inf),
        at=_serve("With --ray: GPUs that a replica reserves."),
    )
    routing: str = declare(
        "prefix",
        choices=ROUTING,
        at=_serve("With --ray: how a request finds its replica; prefix prefers one with the prompt's beginning."),
    )
    resume: bool = declare(
        False, at=_serve("With --ray: a request whose replica was lost goes on elsewhere from the tokens that it has.")
    )
    replica_start_timeout: float = declare(
        600.0, rule=SECONDS, at=_serve("With --ray: seconds in which the first replicas must be ready.")
    )
