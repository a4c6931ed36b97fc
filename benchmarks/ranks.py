"""How an engine of several ranks compares with one of one rank, on one machine: python benchmarks/ranks.py MODEL

It builds the model whole, with 2 and with 4 ranks, and measures time to the first token and time per token, all engines
in turn in every round. With --experts, the engines of one stage are built twice, with a part of every expert on each
rank and with whole experts (python benchmarks/shapes.py moe-0.4b DIR makes a mixture). With R ranks on P processors
each rank has P / R threads, so what is seen beside the whole engine is what ranks cost: sums over shared memory, steps
that are told, and, of stages, the wait for each other. More than one machine was not measured. Figures go to --out as
JSON, and to the screen.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from tensorwright import build

SHARES = ((1, 1, False), (2, 1, False), (1, 2, False), (4, 1, False), (2, 2, False))
EXPERTS = ((1, 1, False), (2, 1, False), (2, 1, True), (4, 1, False), (4, 1, True))
"""(tensor_parallel, pipeline_parallel, expert_parallel). EXPERTS: what --experts compares."""
LOADS = ((64, 64, 1), (64, 32, 8), (512, 16, 1))
"""(prompt, answer, batch)."""


def measured(engine: Path, load: tuple[int, int, int], threads: int) -> dict[str, float]:
    """Seconds to the first token and per token, of one run of `tensorwright bench latency`."""
    prompt, answer, batch = load
    command = [
        sys.executable, "-m", "tensorwright", "bench", "latency", str(engine), "--input-len", str(prompt),
        "--output-len", str(answer), "--batch-size", str(batch), "--requests", str(4 * batch),
        "--threads", str(threads), "--kv-cache-memory", "256MiB", "--json",
    ]  # fmt: skip
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {name: found["seconds"][name]["p50"] for name in ("ttft", "tpot")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--engines", type=Path, default=Path("out/ranks"), help="where engines are built, once")
    parser.add_argument("--quantize", help="formats of the weights, as in build-engine")
    parser.add_argument("--experts", action="store_true", help="whole experts against parts of every expert")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of all ranks together")
    parser.add_argument("--out", type=Path, help="a file for the figures, as JSON")
    asked = parser.parse_args()
    engines = {}
    for tensor, stages, whole_experts in EXPERTS if asked.experts else SHARES:
        name = f"{tensor}x{stages}" + " whole experts" * whole_experts
        engines[name] = path = asked.engines / name.replace(" ", "-")
        if not path.exists():
            build(
                asked.model, path, accuracy="none", max_seq_len=2048, quantize=asked.quantize, tensor_parallel=tensor,
                pipeline_parallel=stages, expert_parallel=whole_experts,
            )  # fmt: skip
    found: dict[str, dict[str, list[float]]] = {}
    for round_number in range(asked.rounds):
        order = list(engines) if round_number % 2 == 0 else list(engines)[::-1]
        for load in LOADS:
            for share in order:
                cell = found.setdefault(f"{share} {load[0]}+{load[1]} batch {load[2]}", {})
                for name, value in measured(engines[share], load, asked.threads).items():
                    cell.setdefault(name, []).append(value)
    print("tensor x stages, prompt + answer: milliseconds to the first token, and per token (medians of rounds)")
    for name, cell in found.items():
        ttft, tpot = (1e3 * statistics.median(cell[key]) for key in ("ttft", "tpot"))
        print(f"{name:38} {ttft:9.1f} {tpot:8.2f}")
    if asked.out is not None:
        asked.out.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
