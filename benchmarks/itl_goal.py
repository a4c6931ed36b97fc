"""What --itl-goal costs: an engine's own step times, measured here, then a simulation of its scheduler at full load.

    python benchmarks/itl_goal.py ENGINE [--goal 2 --goal 1.5] [--requests 400] [--costs FILE]

A goal is given as a multiple of what a step takes in which all places decode, because a goal below that cannot be kept.
Every fourth request has a prompt of 3/4 of the engine's length; the others have short ones. They come all at once, so
the engine is never idle, and the time until the last one has ended is the throughput. Steps of the same shape take as
different times in the simulation as they did in the measurement. --costs: a file of `tensorwright simulate
--save-costs`, in place of measuring. With a busy machine, look at the share that others use, which is printed first.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).resolve().parent)]

from machine import busy_fraction, describe  # noqa: E402

from tensorwright.insight.simulate.replica_file import read_replica  # noqa: E402
from tensorwright.insight.simulate.replica_shape import ReplicaShape  # noqa: E402
from tensorwright.insight.simulate.run_fleet import run_fleet  # noqa: E402
from tensorwright.insight.simulate.simulate import known_replica  # noqa: E402
from tensorwright.insight.simulate.step_costs import StepCosts, StepSample  # noqa: E402
from tensorwright.insight.simulate.traffic import Traffic  # noqa: E402
from tensorwright.options.simulate import FleetFields  # noqa: E402


def full_load(shape: ReplicaShape, requests: int) -> Traffic:
    """Returns requests that all come in the first second: long prompts among short ones, each with its own text."""
    draws = np.random.default_rng(1)
    long = np.arange(requests) % 4 == 0
    prompts = np.where(long, shape.max_seq_len * 3 // 4, draws.integers(20, 100, requests))
    outputs = np.where(long, 30, draws.integers(40, 120, requests))
    arrivals = np.sort(draws.integers(0, 10**9, requests))
    nothing = np.zeros(requests, np.int32)
    return Traffic(
        arrivals.astype(np.int64), prompts.astype(np.int32), outputs.astype(np.int32), nothing, nothing, nothing
    )


def decode_seconds(shape: ReplicaShape, costs: StepCosts, context: int) -> float:
    """Returns the seconds of a step in which all places decode behind so many positions."""
    places = shape.max_batch_size
    pairs, reads = shape.attention([(1, context)] * places)
    return float(costs.of(StepSample(places, places, places, pairs, reads, 0.0)))


def percentile(gaps: dict[str, np.ndarray], share: float) -> float:
    """Returns the time that so many of the times between tokens do not exceed."""
    at = np.searchsorted(np.cumsum(gaps["counts"]), share * gaps["counts"].sum())
    return float(gaps["seconds"][at])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", type=Path, nargs="?")
    parser.add_argument("--goal", type=float, action="append", help="times a full step of decodes [default: 1.5 2 3 5]")
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--costs", type=Path)
    parser.add_argument("--steady", action="store_true", help="steps of the same shape take the same time")
    parser.add_argument("--max-batch-size", type=int, default=16)
    args = parser.parse_args()
    print(describe(), f"others use {busy_fraction():.0%} of the machine", flush=True)
    if args.costs is not None:
        shape, costs = read_replica(args.costs)
    elif args.engine is not None:
        shape, costs = known_replica(args.engine, FleetFields(), {"max_batch_size": args.max_batch_size}, {})
    else:
        parser.error("give an engine or --costs")
    if args.steady:
        costs = replace(costs, spread=())
    traffic = full_load(shape, args.requests)
    full = decode_seconds(shape, costs, shape.max_seq_len // 4)
    print(f"a step of {shape.max_batch_size} decodes takes {full * 1e3:.2f} ms")
    print("| goal, ms | P99 ITL, ms | P50 ITL, ms | tokens/s | of those without | P50 TTFT, s |")
    print("|---|---|---|---|---|---|")
    whole = 0.0
    for times in (0.0, *(args.goal or (1.5, 2.0, 3.0, 5.0))):
        run = run_fleet(replace(shape, itl_goal_s=times * full), costs, traffic)
        speed = (traffic.prompts.sum() + run.generated.sum()) / (run.ended.max() * 1e-9)
        whole = whole or speed
        first = float(np.median(run.first - traffic.arrivals)) * 1e-9
        goal = f"{times * full * 1e3:.2f}" if times else "none"
        p99, p50 = (percentile(run.gaps, share) * 1e3 for share in (0.99, 0.5))
        print(f"| {goal} | {p99:.2f} | {p50:.2f} | {speed:.0f} | {speed / whole:.0%} | {first:.2f} |", flush=True)


if __name__ == "__main__":
    main()
