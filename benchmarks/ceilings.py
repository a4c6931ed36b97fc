"""What this machine can do at most: memory reads, and the fp32, bf16 and int8 rates of its vector units.

    python benchmarks/ceilings.py [--threads 1 2] [--json]

Every figure of a benchmark is held against these, measured in the same run. Best of eight each. int8 is vpdpbusd where
the processor has AVX512-VNNI, else the three AVX2 instructions that stand for it.
"""

from __future__ import annotations

import argparse
import json
import os

from tensorwright.runtime import _runtime

REPEATS = 8


def measure(threads: int) -> dict[str, float]:
    """Returns GB/s of reads, GFLOP/s of fp32 and, if the processor has them, bf16 dot products, GOP/s of int8."""
    what = {"read GB/s": "read", "fp32 GFLOP/s": "float32"}
    if _runtime.cpu_features()["avx512_bf16"]:
        what["bf16 GFLOP/s"] = "bfloat16"
    what["int8 GOP/s"] = "int8"
    return {name: _runtime.ceiling(kind, threads, REPEATS) / 1e9 for name, kind in what.items()}


def thread_counts() -> list[int]:
    """Returns 1, 2 and the number of all processors that this process may use."""
    usable = len(os.sched_getaffinity(0))
    return sorted({1, min(2, usable), usable})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=thread_counts(), help="default: 1, 2 and all")
    parser.add_argument("--json", action="store_true", help="one object on stdout: figures by number of threads")
    args = parser.parse_args()
    figures = {threads: {k: round(v, 1) for k, v in measure(threads).items()} for threads in args.threads}
    if args.json:
        print(json.dumps(figures))
        return
    for threads, row in figures.items():
        print(threads, "threads:", row)


if __name__ == "__main__":
    main()
