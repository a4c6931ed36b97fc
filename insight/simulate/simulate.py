"""Simulates a fleet: takes what a replica is and what its steps cost from where they are known, and runs requests."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tensorwright.durations import parse_duration
from tensorwright.engine_format.engine_config import is_engine
from tensorwright.engine_format.kv_cache import AS_ACTIVATIONS
from tensorwright.errors import InvalidOptionError
from tensorwright.insight.estimate.place import place
from tensorwright.insight.estimate.subject import Progress
from tensorwright.insight.simulate.find_replicas import Found, find_replicas
from tensorwright.insight.simulate.measure_costs import SECONDS, measure_costs, measured_options
from tensorwright.insight.simulate.predict_costs import EngineLimits, predicted_costs, predicted_shape
from tensorwright.insight.simulate.replica_file import read_replica
from tensorwright.insight.simulate.replica_shape import ReplicaShape
from tensorwright.insight.simulate.run_fleet import FleetRun, run_fleet
from tensorwright.insight.simulate.step_costs import StepCosts
from tensorwright.insight.simulate.summary import Goals, good_requests, summarise
from tensorwright.insight.simulate.traffic import make_traffic
from tensorwright.options.declare import check_values
from tensorwright.options.engine import EngineFields
from tensorwright.options.estimate import HERE, EstimateFields
from tensorwright.options.simulate import FleetFields, GoalFields, TrafficFields
from tensorwright.runtime.engine.engine_dir import open_engine
from tensorwright.sizes import parse_size

ENGINE_OPTIONS = (
    "kv_cache_memory", "max_batch_size", "max_num_tokens", "max_prefill_chunk", "max_queue_size",
    "enable_prefix_caching",
)  # fmt: skip
"""The options of a running engine that a simulation has."""


@dataclass(frozen=True)
class Simulation:
    """A simulated fleet. replicas: those of `run`. found: if they were searched; run is then of the number that was
    found, or of the most that were tried. wall_seconds: how long the simulation took."""

    shape: ReplicaShape
    costs: StepCosts
    replicas: int
    router: str
    goals: Goals
    run: FleetRun
    summary: dict[str, Any]
    found: Found | None
    wall_seconds: float


def known_replica(
    model: str | Path | None, fleet: FleetFields, engine: Mapping[str, Any], build_options: Mapping[str, Any],
    measure_seconds: float = SECONDS, progress: Progress | None = None,
) -> tuple[ReplicaShape, StepCosts]:  # fmt: skip
    """Returns what a replica is, and what its steps cost: from a file, measured, or predicted.

    model: an engine, or what an estimate takes; None with a file. engine: itl_goal, priority_ageing and the options of
    ENGINE_OPTIONS.
    Raises InvalidOptionError, EngineError, CheckpointError, OutOfMemoryError.
    """
    shape, costs = _replica(model, fleet, engine, build_options, measure_seconds, progress)
    if (goal := engine.get("itl_goal")) is not None:
        shape = replace(shape, itl_goal_s=parse_duration(goal, "itl_goal"))
    if (ageing := engine.get("priority_ageing")) is not None:
        shape = replace(shape, ageing_s=parse_duration(ageing, "priority_ageing"))
    return shape, costs


def _replica(
    model: str | Path | None, fleet: FleetFields, engine: Mapping[str, Any], build_options: Mapping[str, Any],
    measure_seconds: float, progress: Progress | None,
) -> tuple[ReplicaShape, StepCosts]:  # fmt: skip
    """Returns the replica without the goal for the time between tokens and the ageing, which change no step's cost."""
    values: dict[str, Any] = {name: engine.get(name) for name in ENGINE_OPTIONS}
    asked_bytes = values.pop("kv_cache_memory")
    kv_bytes = None if asked_bytes is None else parse_size(asked_bytes, "kv_cache_memory")
    if values["max_queue_size"] is None:
        values["max_queue_size"] = EngineFields.max_queue_size
    check_values(EngineFields(**{name: value for name, value in values.items() if value is not None}), EngineFields)
    formats = [name for name, value in build_options.items() if value not in (None, AS_ACTIVATIONS, "none")]
    if fleet.costs is not None:
        if model is not None or fleet.device != HERE or formats:
            raise InvalidOptionError(
                "--costs says what the replicas are: leave out the model, its options and --device"
            )
        shape, costs = read_replica(fleet.costs)
        return _changed(shape, kv_bytes, {name: engine.get(name) for name in values}), costs
    if model is None:
        raise InvalidOptionError("a simulation needs an engine, a model, or --costs")
    if fleet.device == HERE and is_engine(Path(os.path.expanduser(model))):
        if formats:
            raise InvalidOptionError(f"{model} is an engine, which has its formats: leave out {', '.join(formats)}")
        if fleet.memory is not None or fleet.tensor_parallel > 1:
            raise InvalidOptionError("--memory and --tensor-parallel are for a predicted device; give one by --device")
        options = measured_options(values | {"threads": fleet.threads}, kv_bytes)
        return measure_costs(open_engine(model), options, measure_seconds)
    where = EstimateFields(
        device=fleet.device, memory=fleet.memory, tensor_parallel=fleet.tensor_parallel, threads=fleet.threads
    )
    placed = place(model, where, build_options, progress)
    shape = predicted_shape(
        placed.costs, placed.device, EngineLimits(kv_cache_bytes=kv_bytes, **values), placed.threads
    )
    return shape, predicted_costs(placed.clock(), shape)


def _changed(shape: ReplicaShape, kv_bytes: int | None, values: Mapping[str, Any]) -> ReplicaShape:
    """Returns the replica of a file with the limits that were given."""
    names = {
        "max_batch_size": "max_batch_size", "max_num_tokens": "max_num_tokens", "max_prefill_chunk": "max_chunk",
        "max_queue_size": "max_queue", "enable_prefix_caching": "prefix_cache",
    }  # fmt: skip
    given: dict[str, Any] = {names[name]: value for name, value in values.items() if value is not None}
    if kv_bytes is not None:
        given["kv_cache_bytes"] = kv_bytes
    return replace(shape, **given)


def simulate(
    shape: ReplicaShape, costs: StepCosts, fleet: FleetFields, traffic: TrafficFields, goals: GoalFields,
    *, find: bool = False, progress: Progress | None = None,
) -> Simulation:  # fmt: skip
    """Simulates the fleet, or with `find` the least one that meets the goals. The same arguments give the same figures.

    Raises InvalidOptionError, PromptTooLongError.
    """
    limits = Goals(goals.ttft_limit, goals.itl_limit, goals.itl_percentile)
    if find and limits.ttft is None and limits.itl is None:
        raise InvalidOptionError("--find-replicas needs a goal: give --ttft-limit, --itl-limit or both")
    requests = make_traffic(traffic, shape.max_seq_len, shape.positions)
    begun = time.perf_counter()
    best: FleetRun | None = None
    run: FleetRun | None = None

    def share_of_good(replicas: int) -> float:
        nonlocal run, best
        run = run_fleet(
            shape, costs, requests, replicas=replicas, router=fleet.router, gap_percentile=limits.itl_percentile,
            progress=progress,
        )  # fmt: skip
        share = float(good_requests(run, limits).mean())
        if share >= goals.goal:
            best = run  # the search goes down from a number that is enough
        return share

    found = find_replicas(share_of_good, goals.goal) if find else None
    if found is None:
        share_of_good(fleet.replicas)
    chosen = run if found is None or found.replicas is None else best
    assert chosen is not None
    seconds = time.perf_counter() - begun
    return Simulation(
        shape, costs, len(chosen.replicas), fleet.router, limits, chosen, summarise(chosen, limits), found, seconds
    )
