"""What a layer's experts cost the ranks: parts of every expert against whole ones, of one instruction alone.

    python benchmarks/experts_of_ranks.py [--ranks 2] [--experts 32] [--taken 4] [--hidden 896] [--inner 512]

One thread runs the instruction of each rank, in this process and in turn, for steps of several sizes whose tokens take
experts at random. A step waits for the slowest rank: of parts all are equal, of whole experts it is the one whose
experts most tokens take. The mean over ranks shows what the width of products is worth alone. Each figure is the median
over steps of the shortest of five runs, in microseconds. benchmarks/ranks.py --experts measures whole engines.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from support.made_experts import MadeExperts
from support.plan_writer import BF16
from tensorwright.runtime import _runtime

STEPS = {1: 24, 8: 24, 64: 8, 512: 4}
"""How many steps of so many tokens are measured."""


def executor_of(folder: Path, asked: argparse.Namespace, count: int, inner: int, first: int, total: int) -> Any:
    folder.mkdir()
    made = MadeExperts(
        hidden=asked.hidden, inner=inner, count=count, k=asked.taken, dtype=BF16, first=first, total=total
    )
    executor = _runtime.CpuExecutor(*made.plan().write(folder), 1, "map")
    executor.allocate([], max(STEPS), max(STEPS), 1)
    return executor


def microseconds(executor: Any, ids: list[int]) -> float:
    """The shortest time of the instruction in five runs of a step."""
    every, times = list(range(len(ids))), []
    for _ in range(5):
        executor.profile(True)
        executor.step(ids, every, [0, len(ids)], [len(ids)], every, [])
        executor.profile(False)
        times.append(sum(row["ns"] for row in executor.profile_table() if row["op"] == "experts") / 1e3)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--experts", type=int, default=32)
    parser.add_argument("--taken", type=int, default=4, help="the experts of a token")
    parser.add_argument("--hidden", type=int, default=896)
    parser.add_argument("--inner", type=int, default=512, help="the columns of an expert")
    asked = parser.parse_args()
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as root:
        part = executor_of(Path(root, "part"), asked, asked.experts, asked.inner // asked.ranks, 0, 0)
        cuts = [asked.experts * rank // asked.ranks for rank in range(asked.ranks + 1)]
        whole = [
            executor_of(Path(root, f"{first}"), asked, end - first, asked.inner, first, asked.experts)
            for first, end in pairwise(cuts)
        ]
        print(f"{'tokens':>8}{'part':>12}{'slowest whole':>16}{'mean whole':>12}")
        for tokens, steps in STEPS.items():
            drawn = [rng.integers(0, asked.hidden, tokens).tolist() for _ in range(steps)]
            parts = [microseconds(part, ids) for ids in drawn]
            ranks = np.array([[microseconds(executor, ids) for executor in whole] for ids in drawn])
            slowest, mean = np.median(ranks.max(axis=1)), np.median(ranks.mean(axis=1))
            print(f"{tokens:8}{np.median(parts):12.0f}{slowest:16.0f}{mean:12.0f}", flush=True)


if __name__ == "__main__":
    main()
