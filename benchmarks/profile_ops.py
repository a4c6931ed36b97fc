"""Where the time of a step goes: every kind of instruction, prefill and decode, against the machine's ceilings.

    python benchmarks/profile_ops.py ENGINE [--threads 2] [--json FILE]

For each kind of step: milliseconds, share, GB/s and GFLOP/s per op, and the share of its roofline: the time its bytes
or its arithmetic would need at the ceilings measured in the same run, whichever is longer, over the time it took. More
than 100 % means that part of the bytes came from a cache. "outside" is the step's wall time less its instructions.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from tensorwright.runtime import _runtime
from tensorwright.runtime.tools.ceilings import Ceilings, figures, measure_ceilings

sys.path.insert(0, str(Path(__file__).parent))

STEPS = {"prefill 512": (1, 0, 512), "decode, batch 1": (1, 128, 1), "decode, batch 4": (4, 128, 1),
         "decode, batch 16": (16, 128, 1), "decode, batch 1 after 4096": (1, 4096, 1)}  # fmt: skip
"""name -> (sequences, positions already in the cache, tokens of each sequence in the step)."""


def step_inputs(seqs: int, context: int, tokens: int, block: int) -> tuple[Any, ...]:
    """Returns the arguments of CpuExecutor.step: each sequence has its own blocks, its last token gets logits."""
    rng = np.random.default_rng(0)
    per_seq = -(-(context + tokens) // block)
    tables = np.arange(seqs * per_seq, dtype=np.int32).reshape(seqs, per_seq)
    positions = np.arange(context, context + tokens)
    slots = (tables[:, positions // block] * block + positions % block).astype(np.int32)
    return (
        rng.integers(10, 1000, seqs * tokens).astype(np.int32),
        np.tile(positions, seqs).astype(np.int32),
        (np.arange(seqs + 1) * tokens).astype(np.int32),
        np.full(seqs, context + tokens, np.int32),
        (np.arange(1, seqs + 1) * tokens - 1).astype(np.int32),
        [(tables, slots.reshape(-1))],
    )


def profile(executor: Any, inputs: tuple[Any, ...], repeats: int) -> tuple[float, dict[str, dict[str, Any]]]:
    """Returns (mean wall seconds of a step, op -> seconds, bytes and ops of one step)."""
    executor.step(*inputs)
    executor.profile(True)
    walls = []
    for _ in range(repeats):
        start = time.perf_counter()
        executor.step(*inputs)
        walls.append(time.perf_counter() - start)
    executor.profile(False)
    ops: dict[str, dict[str, Any]] = {}
    for row in executor.profile_table():
        kind = f"{row['op']} {row['name'].rsplit('.', 1)[-1]}" if "matmul" in row["op"] else row["op"]
        sums = ops.setdefault(kind, {"arithmetic": row["arithmetic"], "seconds": 0.0, "bytes": 0.0, "ops": 0.0})
        sums["seconds"] += row["ns"] * 1e-9 / repeats
        sums["bytes"] += row["bytes"] / repeats
        sums["ops"] += row["ops"] / repeats
    return statistics.fmean(walls), ops


def show(name: str, wall: float, ops: dict[str, dict[str, Any]], ceilings: Ceilings) -> None:
    print(f"\n{name}: {wall * 1e3:.2f} ms; ceilings: {figures(ceilings)}")
    print(f"  {'op':28}{'ms':>9}{'share':>8}{'GB/s':>8}{'GOP/s':>9}{'roofline':>10}")
    for kind, o in sorted(ops.items(), key=lambda item: -item[1]["seconds"]):
        ideal = ceilings.ideal_seconds(o["arithmetic"], o["bytes"], o["ops"])
        seconds = max(o["seconds"], 1e-12)
        print(f"  {kind:28}{seconds * 1e3:9.3f}{seconds / wall:8.1%}{o['bytes'] / seconds / 1e9:8.1f}"
              f"{o['ops'] / seconds / 1e9:9.1f}{ideal / seconds:10.0%}")  # fmt: skip
    rest = wall - sum(o["seconds"] for o in ops.values())
    print(f"  {'outside':28}{rest * 1e3:9.3f}{rest / wall:8.1%}")


def best(*measured: Ceilings) -> Ceilings:
    """Returns, for each ceiling, the largest measured value."""
    rates = [asdict(ceilings) for ceilings in measured]
    return Ceilings(**{name: max((each[name] for each in rates), key=lambda rate: rate or 0) for name in rates[0]})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    from machine import describe, wait_until_idle

    cpu = args.engine / "cpu"
    executor = _runtime.CpuExecutor(str(cpu / "plan.bin"), str(cpu / "weights.bin"), args.threads, "map")
    block = executor.facts()["block_size"]
    executor.allocate([4224 // block], 512, 16, 16)
    print(describe(), f"threads {args.threads}, machine {wait_until_idle():.1%} busy before")
    report = {}
    for name, (seqs, context, tokens) in STEPS.items():
        before = measure_ceilings(args.threads)
        wall, ops = profile(executor, step_inputs(seqs, context, tokens, block), args.repeats)
        ceilings = best(before, measure_ceilings(args.threads))
        show(name, wall, ops, ceilings)
        report[name] = {"wall_seconds": wall, "ops": ops, "ceilings": asdict(ceilings)}
    if args.json:
        args.json.write_text(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
