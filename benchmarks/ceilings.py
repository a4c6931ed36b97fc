"""What this machine can do at most: memory reads, and the fp32 and bf16 rates of its vector units.

    python benchmarks/ceilings.py [--threads 1 2]

Every figure of a benchmark is held against these, measured in the same run. Best of eight each.
"""

from __future__ import annotations

import argparse

from tensorwright.runtime import _runtime


def measure(threads: int) -> dict[str, float]:
    """GB/s of reads and GFLOP/s of fp32 and, where the processor has it, bf16 dot products."""
    what = {"read GB/s": "read", "fp32 GFLOP/s": "float32"}
    if _runtime.cpu_features()["avx512_bf16"]:
        what["bf16 GFLOP/s"] = "bfloat16"
    return {name: _runtime.ceiling(kind, threads, 8) / 1e9 for name, kind in what.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    for threads in parser.parse_args().threads:
        print(threads, "threads:", {name: round(value, 1) for name, value in measure(threads).items()})
