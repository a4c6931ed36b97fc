"""`tensorwright estimate` against measurement on this machine: prefill, decode and memory, by shape and format.

    python benchmarks/estimate_accuracy.py ENGINE [ENGINE ...] --rounds 5
    python benchmarks/estimate_accuracy.py ENGINE [ENGINE ...] --fit      # what kernels reach, for efficiencies.json

The ceilings are measured in each round, just before the steps, and a ratio is the median of those of the rounds: on a
shared machine what memory gives moves by a third from one minute to the next. Memory is the peak of a process that
opens the engine with a cache as large as the estimate counts, and answers one request.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent)]

from machine import describe, wait_until_idle  # noqa: E402

from tensorwright.insight.devices.device import Device  # noqa: E402
from tensorwright.insight.devices.here import measure_here  # noqa: E402
from tensorwright.insight.estimate.costs import PlannedCosts  # noqa: E402
from tensorwright.insight.estimate.estimate import estimate  # noqa: E402
from tensorwright.insight.estimate.roofline import step_seconds, time_of  # noqa: E402
from tensorwright.runtime.engine.engine_dir import EngineDir, open_engine  # noqa: E402
from tensorwright.runtime.tools.tune import Steps, Work  # noqa: E402

WORKS = [
    Work("prefill 128", 1, 0, 128), Work("prefill 512", 1, 0, 512), Work("prefill 512 after 1536", 1, 1536, 512),
    Work("decode 1", 1, 128, 1), Work("decode 4", 4, 128, 1), Work("decode 16", 16, 128, 1),
    Work("decode 1 after 2000", 1, 2000, 1),
]  # fmt: skip
CHILD = """
import re, sys
from tensorwright import LLM, SamplingParams
with LLM(sys.argv[1], kv_cache_memory=int(sys.argv[2]), max_batch_size=1, threads=int(sys.argv[3])) as llm:
    llm.generate([{"prompt_token_ids": list(range(10, 522))}], SamplingParams(max_tokens=128, ignore_eos=True))
    print(int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024)
"""


def best_peaks(device: Device, devices: list[Device]) -> Device:
    """Returns the device with the best peaks of all: what a processor computes does not move with its neighbours."""
    return replace(device, peaks={dtype: max(each.peaks[dtype] for each in devices) for dtype in device.peaks})


def measure(engine: EngineDir, rounds: int, threads: int) -> tuple[list[dict[str, float]], list[Device]]:
    """Returns the seconds of each kind of step in each round, and the device as it was just before them."""
    steps = Steps(engine, threads, WORKS)
    for work in WORKS:
        steps.seconds(work.name, ())
    times, devices = [], []
    for _ in range(rounds):
        devices.append(measure_here(threads)[0])
        times.append(
            {
                work.name: statistics.median(steps.seconds(work.name, ()) for _ in range(9 if work.tokens == 1 else 1))
                for work in WORKS
            }
        )
    return times, [best_peaks(device, devices) for device in devices]


def profiles(engine: EngineDir, rounds: int, threads: int, device: Device) -> list[dict[str, Any]]:
    """Returns, for each instruction of each step, the seconds of a call, and what its bytes and operations need."""
    steps, rows = Steps(engine, threads, WORKS), []
    executor = steps._executor
    for work in WORKS:
        best: list[dict[str, Any]] = []
        for _ in range(rounds * 2):
            executor.profile(True)
            steps.seconds(work.name, ())
            executor.profile(False)
            table = executor.profile_table()
            best = table if not best else [a if a["ns"] <= b["ns"] else b for a, b in zip(best, table, strict=True)]
        for row in best:
            rows.append({
                "step": work.name, "op": row["op"], "arithmetic": row["arithmetic"], "seconds": row["ns"] * 1e-9,
                "bytes": row["bytes"] / device.bandwidth, "operations": row["ops"] / device.peak(row["arithmetic"]),
            })  # fmt: skip
    return rows


def fit(rows: list[dict[str, Any]]) -> None:
    kinds = sorted({(row["op"], row["arithmetic"], row["step"]) for row in rows})
    print(f"{'op':22}{'type':>10}{'step':>24}{'calls':>7}{'us each':>9}{'bytes':>8}{'ops':>8}{'share of the step':>20}")
    whole = {step: sum(row["seconds"] for row in rows if row["step"] == step) for _, _, step in kinds}
    for op, arithmetic, step in kinds:
        own = [row for row in rows if (row["op"], row["arithmetic"], row["step"]) == (op, arithmetic, step)]
        seconds = sum(row["seconds"] for row in own)
        needs = [sum(row[name] for row in own) / seconds for name in ("bytes", "operations")]
        share = seconds / whole[step]
        if share > 0.01:
            each = seconds / len(own) * 1e6
            print(
                f"{op:22}{arithmetic:>10}{step:>24}{len(own):7}{each:9.1f}{needs[0]:8.0%}{needs[1]:8.0%}{share:20.1%}"
            )


def memory(engine: EngineDir, threads: int) -> tuple[float, float]:
    """Returns (bytes estimated, peak bytes measured) of a prompt of 512 and an answer of 128."""
    found = estimate(engine.path, threads=threads, prompt=512, tokens=128)
    cache = max(found.memory.caches, 2 * found.memory.sequence)
    child = [sys.executable, "-P", "-c", CHILD, str(engine.path), str(cache), str(threads)]
    done = subprocess.run(child, check=True, capture_output=True, text=True, env=os.environ | {"MALLOC_ARENA_MAX": "2"})
    return found.memory.total - found.memory.caches + cache, float(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engines", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--fit", action="store_true", help="print what each kind of instruction reaches instead")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    print(f"{describe()}, {args.threads} threads, machine {wait_until_idle():.1%} busy before")
    rows, worst = [], 0.0
    for path in args.engines:
        engine = open_engine(path)
        times, devices = measure(engine, args.rounds, args.threads)
        if args.fit:
            print(f"\n{path}: read {devices[-1].bandwidth / 1e9:.1f} GB/s, {devices[-1].peaks}")
            fit(profiles(engine, args.rounds, args.threads, devices[-1]))
            continue
        costs = PlannedCosts(engine.plan.read_bytes())
        for work in WORKS:
            shape = [(work.tokens, work.context + work.tokens)] * work.sequences
            planned = costs.step(shape, work.sequences)
            pairs = zip(times, devices, strict=True)
            ratio = statistics.median(time_of(planned, device).seconds / own[work.name] for own, device in pairs)
            measured = statistics.median(own[work.name] for own in times)
            rows.append({"engine": str(path), "what": work.name, "measured": measured, "ratio": ratio})
        estimated, peak = memory(engine, args.threads)
        rows.append({"engine": str(path), "what": "memory", "measured": peak, "ratio": estimated / peak})
        own = [row for row in rows if row["engine"] == str(path)]
        worst = max(worst, *(abs(row["ratio"] - 1) for row in own))
        name = "/".join(path.parts[-3:])
        print(
            f"{name:56} read {statistics.median(each.bandwidth for each in devices) / 1e9:.1f}  "
            + "  ".join(f"{row['what']} {row['ratio']:.2f}" for row in own)
        )
    if not args.fit:
        served = step_seconds("x86").seconds * 1e6
        print(f"estimate over measured; the worst is {worst:.0%} off; a served step takes {served:.0f} us more")
    if args.json is not None:
        args.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
