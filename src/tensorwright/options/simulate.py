"""Declares the options of `tensorwright simulate`: the fleet, its traffic, and the goals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tensorwright.number_checks import real
from tensorwright.options.bench import ARRIVALS, LoadTestFields
from tensorwright.options.declare import At, Door, Rule, declare, is_positive, same_as, whole_number
from tensorwright.options.estimate import EstimateFields
from tensorwright.options.ray import ROUTING

ROUTERS = ("round-robin", *ROUTING)
"""The policies by which requests are sent to replicas; insight/simulate/fleet_router.py has the same names."""
SIMULATED_ARRIVALS = (*ARRIVALS, "gamma")
REQUESTS = 1000
"""The requests, unless options say otherwise."""
MAX_REQUESTS, MAX_REPLICAS = 1 << 22, 1000
"""The most requests and replicas of a simulation. runtime/core/simulation has the same numbers."""
MAX_TENANTS = 10_000
TENANT_FIELDS = ("share", "weight", "priority", "deadline")
"""What may stand behind the name of a tenant, as NAME=VALUE."""
GOAL = 0.99
"""The share of requests that must be good, unless an option says another."""


def _simulate(help: str, **differing: Any) -> Mapping[Door, At]:
    return {Door.SIMULATE: At(help, **differing)}


@dataclass(frozen=True)
class FleetFields:
    """The replicas, and where they run. costs: None means that the steps are measured or predicted."""

    device: str = same_as(EstimateFields, "device")
    memory: int | None = same_as(EstimateFields, "memory")
    tensor_parallel: int = same_as(EstimateFields, "tensor_parallel")
    threads: int | None = same_as(EstimateFields, "threads")
    costs: str | None = declare(
        None,
        str,
        at=_simulate("A file of --save-costs whose steps count, in place of measuring or predicting.", metavar="FILE"),
        section="Fleet",
    )
    replicas: int = declare(
        1,
        rule=whole_number(f"a whole number from 1 to {MAX_REPLICAS}", high=MAX_REPLICAS),
        at=_simulate("Engines that share the requests."),
    )
    router: str = declare(
        "least-loaded",
        choices=ROUTERS,
        at=_simulate("How requests are sent to replicas: in turn, to the least loaded, or where their prefix is too."),
    )


@dataclass(frozen=True)
class TrafficFields:
    """The requests. None means that the option was not given. prefix_share: of the requests whose prompts begin as
    others do."""

    requests: int | None = declare(
        None,
        int,
        rule=whole_number(f"a whole number from 1 to {MAX_REQUESTS}", high=MAX_REQUESTS),
        at=_simulate(f"Requests that are simulated. [default: {REQUESTS}, or as many as --arrival-file has]"),
        section="Load",
    )
    rate: float | None = same_as(LoadTestFields, "rate")
    arrival: str | None = declare(
        None,
        str,
        choices=SIMULATED_ARRIVALS,
        at=_simulate(
            "Arrivals: one by one at random, in bursts, or at random and burstier (gamma). [default: poisson]"
        ),
    )
    burst_size: int | None = same_as(LoadTestFields, "burst_size")
    variation: float | None = declare(
        None,
        float,
        rule=Rule("a number above 0, up to 100", lambda value: 0 < real(value) <= 100),
        at=_simulate("With --arrival gamma: standard deviation of the gaps over their mean. [default: 2]"),
    )
    arrival_file: str | None = declare(
        None,
        str,
        at=_simulate(
            "Times and lengths of a published trace: CSV with TIMESTAMP, ContextTokens, GeneratedTokens.",
            metavar="FILE",
        ),
    )
    cut: bool = declare(
        False, at=_simulate("Cut prompts and outputs that the model is too short for; else they are refused.")
    )
    profile: str = same_as(LoadTestFields, "profile")
    input_len: int | None = same_as(LoadTestFields, "input_len")
    output_len: int | None = same_as(LoadTestFields, "output_len")
    prefix_share: float = declare(
        0.0,
        rule=Rule("a number from 0 to 1", lambda value: 0 <= real(value) <= 1),
        at=_simulate("Share of the requests whose prompts begin with one of --prefixes common beginnings."),
    )
    prefixes: int = declare(
        8,
        rule=whole_number("a whole number from 1 to 1000000", high=1_000_000),
        at=_simulate("Common beginnings; each is as likely as another."),
    )
    prefix_len: int = declare(
        256,
        rule=whole_number("a whole number from 1 to 16777216", high=1 << 24),
        at=_simulate("Tokens of a common beginning; of a shorter prompt all but the last."),
    )
    tenants: int = declare(
        1,
        rule=whole_number(f"a whole number from 1 to {MAX_TENANTS}", high=MAX_TENANTS),
        at=_simulate("Tenants whose treatment is compared; the second sends half as much as the first, and so on."),
    )
    tenant: tuple[str, ...] = declare(
        (),
        str,
        repeated=True,
        at=_simulate(
            'Tenant with its share of the requests, and what they have in the scheduler, as "product share=1 weight=4 '
            'priority=1 deadline=30s". May be repeated.',
            metavar="TEXT",
        ),
    )
    seed: int = same_as(LoadTestFields, "seed")


@dataclass(frozen=True)
class GoalFields:
    """What makes a request good, and how many must be."""

    ttft_limit: float | None = same_as(LoadTestFields, "ttft_limit")
    itl_limit: float | None = same_as(LoadTestFields, "itl_limit")
    itl_percentile: float = same_as(LoadTestFields, "itl_percentile")
    goal: float = declare(
        GOAL,
        rule=Rule("a number above 0, up to 1", lambda value: is_positive(value) and real(value) <= 1),
        at=_simulate("With --find-replicas: share of the requests that must be good."),
    )
