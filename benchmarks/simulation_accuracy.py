"""`tensorwright simulate` against measurement: one engine on this machine under several loads, predicted and run.

    python benchmarks/simulation_accuracy.py out/pico [--rounds 3] [--seconds 10] [--json FILE]

In each round the costs of steps are measured first, then each load is run in this process, through the engine and the
client that `LLM` has, and simulated with these costs. The loads are Poisson arrivals at 30, 60 and 80 % of the rate
that the simulator says is the most, all requests at once, and Poisson arrivals at 60 % of which half begin alike. A
ratio is predicted / measured, the median over the rounds. Nothing else should run: a disturbed machine is not the one
whose steps were measured, and the script says how busy it was before each round. A second table is of simulations
whose costs are fitted to the steps of the measured run itself: what is left there is the fault of the model, and not
of a machine that was faster or slower than when it was measured.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path[:0] = [str(Path(__file__).resolve().parent)]

from machine import busy_fraction, describe, wait_until_idle  # noqa: E402

from tensorwright.insight.simulate.measure_costs import (  # noqa: E402
    SteppedClient,
    measure_costs,
    measured_options,
    samples_of,
    stepped_client,
)
from tensorwright.insight.simulate.replica_shape import ReplicaShape  # noqa: E402
from tensorwright.insight.simulate.run_fleet import run_fleet  # noqa: E402
from tensorwright.insight.simulate.step_costs import StepCosts, fit_costs  # noqa: E402
from tensorwright.insight.simulate.summary import Goals, summarise  # noqa: E402
from tensorwright.insight.simulate.traffic import Traffic, make_traffic  # noqa: E402
from tensorwright.options.simulate import TrafficFields  # noqa: E402
from tensorwright.runtime.engine.engine_dir import EngineDir, open_engine  # noqa: E402

FIGURES = ("requests/s", "TTFT mean", "TTFT P99", "ITL mean")
LENGTHS = TrafficFields(profile="code", input_len=256, output_len=96)
LIMITS: dict[str, Any] = {
    "max_batch_size": 32, "max_num_tokens": 512, "max_prefill_chunk": None, "enable_prefix_caching": None,
    "max_queue_size": 4096,
}  # fmt: skip
KV_BYTES = 64 << 20


def loads(shape: ReplicaShape, costs: StepCosts, seconds: float, seed: int) -> dict[str, Traffic]:
    """Returns the requests of each load, by its name. seconds: about how long each of them lasts."""

    def make(**fields: Any) -> Traffic:
        return make_traffic(replace(LENGTHS, seed=seed, **fields), shape.max_seq_len, shape.positions)

    rush = run_fleet(shape, costs, make(arrival="burst", requests=200))
    most = 200 / (float(rush.ended.max()) * 1e-9)

    def count(rate: float) -> int:
        return max(20, round(rate * seconds))

    found = {
        f"Poisson, {share:.0%} of the most": make(rate=most * share, requests=count(most * share))
        for share in (0.3, 0.6, 0.8)
    }
    found["all at once"] = make(arrival="burst", requests=count(most))
    found["half begin alike, 60%"] = make(
        rate=most * 0.6, requests=count(most * 0.6), prefix_share=0.5, prefixes=4, prefix_len=96
    )
    return found


def prompts_of(traffic: Traffic, vocabulary: int, seed: int) -> list[list[int]]:
    """Returns prompts that begin alike where the traffic's do."""
    rng = np.random.default_rng([seed, 1])
    beginnings = rng.integers(0, vocabulary, (int(traffic.prefixes.max()) + 1, int(traffic.prefix_tokens.max())))
    prompts = []
    for i, length in enumerate(traffic.prompts.tolist()):
        shared = int(traffic.prefix_tokens[i])
        own = rng.integers(0, vocabulary, length - shared)
        prompts.append([*beginnings[traffic.prefixes[i], :shared].tolist(), *own.tolist()])
    return prompts


WARM_UP = 20


def measure(engine: EngineDir, traffic: Traffic, seed: int) -> tuple[dict[str, float], StepCosts]:
    """Sends the requests at their times. Returns the figures, and the costs of the steps that they took."""
    prompts = prompts_of(traffic, engine.vocab_size, seed)
    with stepped_client(engine, measured_options(LIMITS, KV_BYTES)) as client:
        for handle in [client.submit([1, 2, 3, i], 16) for i in range(WARM_UP)]:
            handle.result()
        figures = send(client, traffic, prompts)
        # The engine's numbers of requests begin at 1.
        samples = samples_of(client.stop(), client.shape, WARM_UP + 1)
    return figures, fit_costs(samples, "the run itself")


def send(client: SteppedClient, traffic: Traffic, prompts: list[list[int]]) -> dict[str, float]:
    arrivals = (traffic.arrivals * 1e-9).tolist()
    begin, sent, handles = time.perf_counter(), [], []
    for arrival, prompt, output in zip(arrivals, prompts, traffic.outputs.tolist(), strict=True):
        while (left := begin + arrival - time.perf_counter()) > 0:
            time.sleep(left)
        sent.append(time.perf_counter() - begin)
        handles.append(client.submit(prompt, output))
    metrics = [handle.result().metrics for handle in handles]
    ended = max(at + (m.total_time or 0.0) for at, m in zip(sent, metrics, strict=True)) - sent[0]
    first = [m.time_to_first_token for m in metrics if m.time_to_first_token is not None]
    gaps = [gap for m in metrics for gap in m.inter_token_times]
    return {
        "requests/s": len(handles) / ended,
        "TTFT mean": statistics.mean(first),
        "TTFT P99": float(np.percentile(first, 99)),
        "ITL mean": statistics.mean(gaps),
    }


def predict(shape: ReplicaShape, costs: StepCosts, traffic: Traffic) -> dict[str, float]:
    figures = summarise(run_fleet(shape, costs, traffic), Goals())
    seconds = figures["seconds"]
    return {
        "requests/s": figures["per_second"]["requests"],
        "TTFT mean": seconds["ttft"]["mean"],
        "TTFT P99": seconds["ttft"]["p99"],
        "ITL mean": seconds["itl"]["mean"],
    }


Round = dict[str, dict[str, tuple[float, ...]]]
"""By load and figure: predicted, measured, and, if there are such, predicted with the costs of the run itself."""


def one_round(engine: EngineDir, seconds: float, seed: int) -> Round:
    shape, costs = measure_costs(engine, measured_options(LIMITS, KV_BYTES), seconds)
    print(f"  {costs.source}; a step is {costs.error:.1%} off in the mean", flush=True)
    table: Round = {}
    for number, (name, traffic) in enumerate(loads(shape, costs, seconds, seed).items()):
        measured, own = measure(engine, traffic, 100 * seed + number)
        predicted, afterwards = predict(shape, costs, traffic), predict(shape, own, traffic)
        table[name] = {figure: (predicted[figure], measured[figure], afterwards[figure]) for figure in FIGURES}
    return table


def show(rounds: list[Round], title: str, place: int) -> None:
    print(f"{title:32}" + "".join(f"{figure:>13}" for figure in FIGURES))
    for name in rounds[0]:
        ratios = [statistics.median(each[name][f][place] / each[name][f][1] for each in rounds) for f in FIGURES]
        print(f"{name:32}" + "".join(f"{ratio:13.2f}" for ratio in ratios))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement and of each load")
    parser.add_argument("--wait", type=float, default=300.0, help="the most seconds to wait for an idle machine")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    print(describe())
    wait_until_idle(patience=args.wait)
    rounds = []
    for number in range(args.rounds):
        print(f"round {number}: others use {busy_fraction():.0%} of the machine", flush=True)
        rounds.append(one_round(open_engine(args.engine), args.seconds, number))
    show(rounds, "predicted / measured", 0)
    show(rounds, "with the costs of the run itself", 2)
    if args.json is not None:
        args.json.write_text(json.dumps(rounds, indent=2))


if __name__ == "__main__":
    main()
