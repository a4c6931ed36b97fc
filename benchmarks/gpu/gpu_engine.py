"""Throughput of an engine on this machine's GPU: prefill 512 and decode at batch 1, 8 and 64.

    python benchmarks/gpu/gpu_engine.py ENGINE [--rounds 5] [--json FILE]

Make the engine with, say,

    build-engine CHECKPOINT ENGINE --target tensorrt-rtx --dtype bfloat16 --max-batch-size 64 --max-num-tokens 2048
    build-engine CHECKPOINT ENGINE --target onnx --dtype float16 --max-seq-len 2048

Engines of target onnx run on ONNX Runtime's CUDA provider, with TENSORWRIGHT_ONNX_PROVIDER=cuda. Each case runs once
before it counts, for the library compiles kernels for shapes that it has not seen. Needs an NVIDIA GPU; without one it
says so and ends with code 2. The public API, in-flight batching and sampling are included.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

CASES: list[dict[str, Any]] = [
    {"name": "prefill 512", "prompt": 512, "batch": 1, "steps": 0},
    {"name": "decode, batch 1", "prompt": 128, "batch": 1, "steps": 128},
    {"name": "decode, batch 8", "prompt": 128, "batch": 8, "steps": 128},
    {"name": "decode, batch 64", "prompt": 128, "batch": 64, "steps": 64},
]
TOKENS_OF_A_STEP = 2048


def prompts(case: dict[str, Any], vocab_size: int, seed: int) -> list[dict[str, list[int]]]:
    import numpy as np

    ids = np.random.default_rng(seed).integers(0, vocab_size, (case["batch"], case["prompt"]))
    return [{"prompt_token_ids": row} for row in ids.tolist()]


def tokens_per_second(llm: Any, case: dict[str, Any], seed: int) -> float:
    """Returns tokens per second: of prompts without steps; else of answers after the last prompt is done."""
    from tensorwright import SamplingParams

    params = SamplingParams(max_tokens=case["steps"] + 1, temperature=0.0, ignore_eos=True, detokenize=False)
    requests = prompts(case, llm.engine.vocab_size, seed)
    start = time.perf_counter()
    outputs = llm.generate(requests, params)
    wall = time.perf_counter() - start
    if not case["steps"]:
        return case["batch"] * case["prompt"] / wall
    metrics = [output.metrics for output in outputs]
    first = max(m.time_to_first_token for m in metrics)
    return tokens_after(metrics, first) / (wall - first)


def tokens_after(metrics: list[Any], first: float) -> int:
    """Counts tokens sampled later than `first`: during the last prompts, the other sequences decoded already."""
    times = [m.time_to_first_token + at for m in metrics for at in itertools.accumulate(m.inter_token_times)]
    return sum(time > first for time in times)


SEQUENCES = 64
"""The sequences that the cache of an ONNX engine holds: the largest batch of CASES."""


def open_llm(path: str) -> tuple[Any, dict[str, str]]:
    """Returns (LLM at the engine's own limits, facts of what runs it)."""
    from tensorwright import LLM
    from tensorwright.runtime.engine.engine_dir import open_engine

    engine = open_engine(path)
    if engine.target == "onnx":
        memory, facts, limits = SEQUENCES * engine.kv_block_bytes, onnx_facts(), (SEQUENCES, TOKENS_OF_A_STEP)
    else:
        memory, (facts, limits) = None, tensorrt_facts(engine)
    batch, tokens = limits
    llm = LLM(path, max_batch_size=min(batch, tokens), max_num_tokens=tokens, max_prompt_logprob_rows=1,
              enable_prefix_caching=False, kv_cache_memory=memory)  # fmt: skip
    return llm, facts


def onnx_facts() -> dict[str, str]:
    import onnxruntime

    provider = os.environ.get("TENSORWRIGHT_ONNX_PROVIDER", "cpu")
    return {"library": f"onnxruntime {onnxruntime.__version__}", "provider": provider}


def tensorrt_facts(engine: Any) -> tuple[dict[str, str], tuple[int, int]]:
    """Returns (facts, (most sequences, most tokens of a step))."""
    from tensorwright.runtime.engine.tensorrt.cuda import Cuda, load_driver
    from tensorwright.runtime.engine.tensorrt.executor import read_manifest

    manifest = read_manifest(engine)
    cuda = Cuda(load_driver(manifest.flavour))
    facts = {"gpu": cuda.name, "sm": str(cuda.sm), "library": f"{manifest.flavour} {manifest.library_version}"}
    cuda.close()
    return facts, (manifest.limit("seqs"), min(TOKENS_OF_A_STEP, manifest.limit("tokens")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()

    from tensorwright.errors import TensorwrightError

    try:
        llm, facts = open_llm(args.engine)
    except TensorwrightError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from error
    rows: dict[str, list[float]] = {}
    with llm:
        fitting = [c for c in CASES if c["prompt"] + c["steps"] + 1 <= llm.engine.max_seq_len]
        for case in fitting:
            tokens_per_second(llm, case, 0)
        for round_ in range(args.rounds):
            for case in fitting:
                rows.setdefault(case["name"], []).append(tokens_per_second(llm, case, round_ + 1))
    print(", ".join(f"{name}: {value}" for name, value in facts.items()))
    print(f"{'':18}{'tokens/s':>12}{'lowest':>12}{'highest':>12}   (median of {args.rounds})")
    for name, values in rows.items():
        print(f"{name:18}{statistics.median(values):12.1f}{min(values):12.1f}{max(values):12.1f}")
    for case in CASES:
        if case["name"] not in rows:
            print(f"{case['name']:18} not run: the engine's max_seq_len is {llm.engine.max_seq_len}")
    if args.json:
        Path(args.json).write_text(json.dumps({**facts, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
