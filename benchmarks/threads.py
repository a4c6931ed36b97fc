"""What more threads bring on this machine: a prompt and decode steps with each number of threads, taken in turns.

    python benchmarks/threads.py ENGINE [--threads 1 2 4 8 16] [--repeats 5] [--json FILE]

Prints milliseconds of a step, times as fast as with the fewest threads, and the weights' bytes per second against what
as many threads read at most, measured in the same run. Logits are copied out by one thread, which counts.
many_cores.py simulates such a table for machines with more cores than this one.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from tensorwright.runtime import _runtime

sys.path.insert(0, str(Path(__file__).parent))

from machine import describe, wait_until_idle
from profile_ops import STEPS, step_inputs

CEILING_REPEATS = 5


def counts() -> list[int]:
    """Returns 1, 2, 4, ... and the number of all processors that this process may use."""
    usable = len(os.sched_getaffinity(0))
    return sorted({usable, *(1 << bit for bit in range(usable.bit_length()) if 1 << bit < usable)})


def opened(engine: Path, threads: int, positions: int) -> Any:
    cpu = engine / "cpu"
    executor = _runtime.CpuExecutor(str(cpu / "plan.bin"), str(cpu / "weights.bin"), threads, "map")
    executor.allocate([-(-positions // executor.facts()["block_size"])], 512, 16, 16)
    return executor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", type=Path)
    parser.add_argument("--threads", type=int, nargs="+", default=counts())
    parser.add_argument("--repeats", type=int, default=5, help="rounds; the fastest step of each counts")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    positions = 16 * (128 + 512) + 4096 + 512
    teams = {threads: opened(args.engine, threads, positions) for threads in sorted(args.threads)}
    print(describe(), f"machine {wait_until_idle(patience=20):.1%} busy before")
    read = {n: _runtime.ceiling("read", n, CEILING_REPEATS) for n in teams}
    size = (args.engine / "cpu" / "weights.bin").stat().st_size
    report: dict[str, Any] = {"machine": describe(), "read_bytes_per_second": read, "weights_bytes": size, "steps": {}}
    for name, (seqs, context, tokens) in STEPS.items():
        times: dict[int, list[float]] = {threads: [] for threads in teams}
        for turn in range(args.repeats + 1):
            for threads, executor in teams.items():
                inputs = step_inputs(seqs, context, tokens, executor.facts()["block_size"])
                for _ in range(3 if tokens == 1 else 1):
                    begin = time.perf_counter()
                    executor.step(*inputs)
                    if turn:
                        times[threads].append(time.perf_counter() - begin)
        print(name)
        first = min(next(iter(times.values())))
        report["steps"][name] = {}
        for threads, all_of_it in times.items():
            best, middle = min(all_of_it), statistics.median(all_of_it)
            share = size / best / read[threads]
            line = f"  {threads:4} threads {best * 1e3:10.3f} ms (median {middle * 1e3:10.3f})"
            rate = f"weights {size / best / 1e9:7.1f} GB/s, {share:5.0%} of {read[threads] / 1e9:.1f}"
            print(f"{line}, {first / best:6.2f} times, {rate}", flush=True)
            report["steps"][name][threads] = {"best_seconds": best, "median_seconds": middle}
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
