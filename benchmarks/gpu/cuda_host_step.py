"""Times what a step of target cuda costs the host, over a driver that does nothing (idle_libcuda.c). No GPU is needed.

    python benchmarks/gpu/cuda_shapes.py make CONFIG.json OUT      a plan of a published shape, without weights
    python benchmarks/gpu/cuda_host_step.py OUT [--repeats 500] [--json FILE]

Decode steps of 1, 8 and 64 sequences, replayed as CUDA graphs and with every kernel started by itself: metadata,
expressions, launches, and waiting for nothing. Microseconds, median and least. Real drivers take their own time for
each launch besides: docs/gpu.md has what one took.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from cuda_shapes import BLOCK, FACTS, WEIGHTS, step_of

HERE = Path(__file__).resolve().parent
CONTEXT = 1024
BATCHES = (1, 8, 64)


def measure(out: Path, weights: Path, library: Path, repeats: int) -> list[dict[str, Any]]:
    from tensorwright.runtime import _runtime

    facts = json.loads((out / FACTS).read_text())
    plan = str(out / f"sm_{facts['sm']}.plan")
    rows = []
    for graphs in (True, False):
        executor = _runtime.CudaExecutor(plan, str(weights), 0, cublaslt=[str(library)], graphs=graphs, threads=1)
        own = executor.facts()
        most_seqs, most_tokens = own["max_batch_size"], own["max_num_tokens"]
        executor.allocate([max(BATCHES) * CONTEXT // BLOCK], most_tokens, min(own["max_rows"], most_tokens), most_seqs)
        for seqs in (batch for batch in BATCHES if batch <= most_seqs):
            times = executor.step_seconds(*step_of(seqs, 1, CONTEXT, own["vocab_size"]), repeats + 10)[10:]
            rows.append(
                {
                    "sequences": seqs,
                    "graphs": graphs,
                    "median_us": statistics.median(times) * 1e6,
                    "least_us": min(times) * 1e6,
                    "instructions": facts["instructions"],
                }
            )
        executor.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="what cuda_shapes.py make wrote")
    parser.add_argument("--repeats", type=int, default=500)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        library, weights = Path(folder) / "libcuda.so.1", Path(folder) / "weights.bin"
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, HERE / "idle_libcuda.c"], check=True)
        os.environ["TENSORWRIGHT_LIBCUDA"] = str(library)
        with weights.open("wb") as file:  # holes alone: nobody computes with them
            file.truncate(json.loads((args.out / WEIGHTS).read_text())["bytes"])
        rows = measure(args.out, weights, library, args.repeats)
    for row in rows:
        print(f"{row['sequences']:4} sequences, {'graph' if row['graphs'] else 'launches':9}"
              f"{row['median_us']:9.1f} us (least {row['least_us']:.1f})")  # fmt: skip
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
