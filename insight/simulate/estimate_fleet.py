"""Estimates how many replicas of a model on a device meet goals at a rate: by simulating fleets of it.

Requests have the lengths of the estimate and arrive at random (Poisson). The steps are those of the roofline.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tensorwright.errors import InvalidOptionError
from tensorwright.insight.estimate.estimate import Estimate
from tensorwright.insight.estimate.subject import Progress
from tensorwright.insight.simulate.predict_costs import EngineLimits, predicted_costs, predicted_shape
from tensorwright.insight.simulate.show import found_in_words
from tensorwright.insight.simulate.simulate import Simulation, simulate
from tensorwright.options.bench import FIXED, LoadTestFields
from tensorwright.options.declare import check_values
from tensorwright.options.simulate import GOAL, FleetFields, GoalFields, TrafficFields

SECONDS = 60.0
"""The least time in which the requests arrive: queues must have the time to grow."""
MIN_REQUESTS, MAX_REQUESTS = 2000, 200_000
"""The requests of each simulated fleet."""


@dataclass(frozen=True)
class FleetEstimate:
    """An answer. rate: requests per second. devices: of each replica."""

    rate: float
    devices: int
    done: Simulation


def check_fleet(rate: float | None, ttft_limit: float | None, itl_limit: float | None) -> None:
    """Raises InvalidOptionError for options of a fleet that do not go together."""
    check_values(LoadTestFields(rate=rate, ttft_limit=ttft_limit, itl_limit=itl_limit), LoadTestFields)
    goals = [name for name, value in (("--ttft-limit", ttft_limit), ("--itl-limit", itl_limit)) if value is not None]
    if rate is None and goals:
        raise InvalidOptionError(f"{goals[0]} is a goal of a fleet, which needs --rate")
    if rate is not None and not goals:
        raise InvalidOptionError("--rate needs a goal of the fleet: give --ttft-limit, --itl-limit or both")


def estimate_fleet(
    found: Estimate, *, rate: float, ttft_limit: float | None, itl_limit: float | None, progress: Progress | None = None
) -> FleetEstimate:
    """Returns the least fleet that meets the goals. Raises InvalidOptionError, also if the model does not fit on the
    device."""
    placed = found.placed
    shape = predicted_shape(placed.costs, placed.device, EngineLimits(), placed.threads)
    traffic = TrafficFields(
        requests=min(MAX_REQUESTS, max(MIN_REQUESTS, round(rate * SECONDS))),
        rate=rate,
        profile=FIXED,
        input_len=found.lengths.prompt,
        output_len=found.lengths.tokens,
    )
    goals = GoalFields(ttft_limit=ttft_limit, itl_limit=itl_limit)
    costs = predicted_costs(placed.clock(), shape)
    done = simulate(shape, costs, FleetFields(), traffic, goals, find=True, progress=progress)
    return FleetEstimate(rate, placed.devices, done)


def fleet_as_dict(fleet: FleetEstimate) -> dict[str, Any]:
    """Returns the answer as plain data."""
    found = fleet.done.found
    assert found is not None
    return {
        "rate": fleet.rate, "goals": asdict(fleet.done.goals), "goal": GOAL, "replicas": found.replicas,
        "devices_of_replica": fleet.devices, "good_by_replicas": found.tried, "result": fleet.done.summary,
        "step_error": fleet.done.costs.error,
    }  # fmt: skip


def fleet_lines(fleet: FleetEstimate) -> list[str]:
    """Returns the answer as lines of text."""
    done = fleet.done
    assert done.found is not None
    seconds = done.summary["seconds"]
    times = ", ".join(
        f"P99 of {name.upper()} {seconds[name]['p99'] * 1e3:.1f} ms" for name in ("ttft", "itl") if seconds[name]
    )
    return [
        f"Fleet for {fleet.rate:g} requests/s, of which {GOAL:.0%} must be good",
        f"  {found_in_words(done.found)}",
        f"  with {done.replicas}: {times}; replicas busy {done.summary['busy']['mean']:.0%} of the time",
        f"  simulated with the engine's scheduler; steps by the roofline, which the simulation's costs are "
        f"{done.costs.error:.1%} off in the mean",
    ]
