"""Runs requests through simulated replicas: sets up the C++ fleet, routes, and reads what became of the requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorwright.insight.estimate.subject import Progress
from tensorwright.insight.simulate.fleet_router import FleetRouter
from tensorwright.insight.simulate.replica_shape import ReplicaShape
from tensorwright.insight.simulate.step_costs import StepCosts
from tensorwright.insight.simulate.traffic import Traffic
from tensorwright.runtime.engine import native


@dataclass(frozen=True)
class FleetRun:
    """What became of the requests of a traffic.

    replica: int32 [requests], -1 if the replica refused the request because its queue was full. started, first, ended:
    int64 nanoseconds [requests], -1 if never. late: uint8 [requests], 1 if it ended because it could not meet its
    deadline. cached, generated: int32 tokens [requests]. gap: float32 seconds
    [requests], the percentile of its times between tokens. gaps: those of all requests, in bins. replicas: what each
    replica did. steps: the spans of the only replica (runtime/core/base/timeline.h), if they were kept.
    """

    traffic: Traffic
    replica: np.ndarray
    started: np.ndarray
    first: np.ndarray
    ended: np.ndarray
    cached: np.ndarray
    generated: np.ndarray
    late: np.ndarray
    gap: np.ndarray
    gaps: dict[str, Any]
    replicas: tuple[dict[str, Any], ...]
    steps: np.ndarray | None = None


def run_fleet(
    shape: ReplicaShape,
    costs: StepCosts,
    traffic: Traffic,
    *,
    replicas: int = 1,
    router: str = "least-loaded",
    gap_percentile: float = 99.0,
    keep_steps: bool = False,
    progress: Progress | None = None,
) -> FleetRun:
    """Simulates until all requests have ended. The same arguments give the same result.

    router: a name of ROUTERS. gap_percentile: of the times between a request's tokens that `gap` has. keep_steps: for
    one replica. progress: hears of arrivals. Raises InvalidOptionError, PromptTooLongError, OutOfMemoryError.
    """
    options = shape.native_options()
    costs.set_on(options)
    options.replicas, options.seed = replicas, traffic.seed % (1 << 32)
    options.gap_percentile, options.keep_steps = gap_percentile, keep_steps
    fleet = native.load_module().SimulatedFleet(options)
    routing = FleetRouter(router, replicas, shape.max_batch_size, shape.block_size, traffic, progress)
    columns = (
        traffic.arrivals, traffic.prompts, traffic.outputs, traffic.prefixes, traffic.prefix_tokens,
        traffic.conversations, traffic.tenants,
    )  # fmt: skip
    table = native.load_module().SimulatedTenants(
        [tenant.weight for tenant in traffic.known],
        [tenant.priority for tenant in traffic.known],
        [-1.0 if tenant.deadline is None else tenant.deadline for tenant in traffic.known],
    )
    fleet.run(*columns, table, routing.choose, routing.finished)
    steps = fleet.steps()[0] if keep_steps else None
    return FleetRun(traffic, **fleet.outcomes(), gaps=fleet.gaps(), replicas=tuple(fleet.replicas()), steps=steps)
