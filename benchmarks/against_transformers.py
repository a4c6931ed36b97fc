"""Tensorwright against transformers on the CPU: prefill 512 and decode at batch 1, 4, 16, bf16, same weights.

    python benchmarks/against_transformers.py CHECKPOINT ENGINE [--rounds 3] [--json FILE]

Each side is a process of its own that loads once and then answers one case at a time; cases alternate A B A B,
so a machine that drifts drifts for both. Ceilings (read bandwidth, bf16 peak) are measured between rounds, and
the machine must be idle before each. The ratio is taken pair by pair and its median is quoted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

CASES: list[dict[str, Any]] = [
    {"name": "prefill 512", "kind": "prefill", "prompt": 512, "batch": 1},
    {"name": "decode, batch 1", "kind": "decode", "prompt": 128, "batch": 1, "steps": 32},
    {"name": "decode, batch 4", "kind": "decode", "prompt": 128, "batch": 4, "steps": 16},
    {"name": "decode, batch 16", "kind": "decode", "prompt": 128, "batch": 16, "steps": 16},
]


def prompts(case: dict[str, Any], seed: int) -> list[list[int]]:
    import numpy as np

    rng = np.random.default_rng(seed)
    return rng.integers(10, 30000, (case["batch"], case["prompt"])).tolist()


class Transformers:
    """One side: eager, as transformers' users have it, bf16, cache on, logits of the last position only."""

    def __init__(self, path: str, threads: int):
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(threads)
        self.torch = torch
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16).eval()

    def run(self, case: dict[str, Any], seed: int) -> float:
        torch = self.torch
        ids = torch.tensor(prompts(case, seed))
        with torch.inference_mode():
            start = time.perf_counter()
            out = self.model(ids, use_cache=True, logits_to_keep=1)
            token = out.logits[:, -1:].argmax(-1)
            if case["kind"] == "prefill":
                return ids.numel() / (time.perf_counter() - start)
            start = time.perf_counter()
            for _ in range(case["steps"]):
                out = self.model(token, past_key_values=out.past_key_values, use_cache=True)
                token = out.logits[:, -1:].argmax(-1)
            return case["batch"] * case["steps"] / (time.perf_counter() - start)


class Ours:
    """The other side: the public API, with in-flight batching and sampling."""

    def __init__(self, path: str, threads: int):
        from tensorwright import LLM

        self.llm = LLM(path, threads=threads, max_num_tokens=2048, max_batch_size=16,
                       enable_prefix_caching=False, kv_cache_memory="512MiB")  # fmt: skip

    def run(self, case: dict[str, Any], seed: int) -> float:
        from tensorwright import SamplingParams

        requests = [{"prompt_token_ids": p} for p in prompts(case, seed)]
        steps = case.get("steps", 0)
        params = SamplingParams(max_tokens=steps + 1, temperature=0.0, ignore_eos=True, detokenize=False)
        start = time.perf_counter()
        outputs = self.llm.generate(requests, params)
        wall = time.perf_counter() - start
        if case["kind"] == "prefill":
            return case["batch"] * case["prompt"] / wall
        first = max(o.metrics.time_to_first_token for o in outputs)  # the step in which the last prompt was done
        return case["batch"] * steps / (wall - first)


def worker(side: str, path: str, threads: int) -> None:
    """Answers one case per line of standard input."""
    runner = {"transformers": Transformers, "tensorwright": Ours}[side](path, threads)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps({"tokens_per_second": runner.run(request["case"], request["seed"])}), flush=True)


class Side:
    def __init__(self, name: str, path: str, threads: int):
        command = [sys.executable, __file__, "--worker", name, path, "--threads", str(threads)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._read()

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the worker ended with code {self.process.wait()}")
        return json.loads(line)

    def ask(self, case: dict[str, Any], seed: int) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"case": case, "seed": seed}) + "\n")
        self.process.stdin.flush()
        return self._read()["tokens_per_second"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worker", nargs=2, metavar=("SIDE", "PATH"), help=argparse.SUPPRESS)
    parser.add_argument("checkpoint", nargs="?")
    parser.add_argument("engine", nargs="?")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    if args.worker:
        worker(*args.worker, args.threads)
        return
    if not args.checkpoint or not args.engine:
        parser.error("CHECKPOINT and ENGINE are needed")

    from ceilings import measure
    from machine import describe, wait_until_idle

    sides = {"tensorwright": Side("tensorwright", args.engine, args.threads),
             "transformers": Side("transformers", args.checkpoint, args.threads)}  # fmt: skip
    for side in sides.values():  # warms up: pages in the weights, and lets libraries pack theirs
        for case in CASES:
            side.ask(case, 0)
    rows: dict[str, dict[str, list[float]]] = {c["name"]: {s: [] for s in sides} for c in CASES}
    ceilings, busy = [], []
    for round_ in range(args.rounds):
        busy.append(wait_until_idle())
        ceilings.append(measure(args.threads))
        for case in CASES:
            for name, side in sides.items():
                rows[case["name"]][name].append(side.ask(case, round_ + 1))
    report = {
        "machine": describe(),
        "threads": args.threads,
        "busy": busy,
        "ceilings": ceilings,
        "rows": rows,
    }
    print(f"{'':18}{'tensorwright':>14}{'transformers':>14}{'ratio':>8}   (medians of {args.rounds})")
    for case, row in rows.items():
        ratios = [a / b for a, b in zip(row["tensorwright"], row["transformers"], strict=True)]
        a, b = statistics.median(row["tensorwright"]), statistics.median(row["transformers"])
        print(f"{case:18}{a:14.1f}{b:14.1f}{statistics.median(ratios):8.2f}")
    print("ceilings:", {k: round(statistics.median(c[k] for c in ceilings), 1) for k in ceilings[0]},
          "busy before each round:", [round(b, 3) for b in busy])  # fmt: skip
    if args.json:
        Path(args.json).write_text(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
