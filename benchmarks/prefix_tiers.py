"""The time to the first token of a long prompt that was asked before: computed, or from cache, memory or disk.

    python benchmarks/prefix_tiers.py ENGINE [--length 20000] [--runs 3] [--directory DIR] [--json FILE]

Each figure is the median of some runs of one request alone, with one token to answer:

* computed: an engine that has just started, with nothing on disk.
* KV cache: the same prompt again.
* memory: after other prompts have taken its blocks, which went to --prefix-cache-memory.
* disk: after a restart of the engine, once with the files in the system's page cache, and once without: the benchmark
  asks the system to drop them (posix_fadvise), which it may do in part.

The start of the engine is not in the times. Needs an idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from machine import describe, wait_until_idle

from tensorwright import LLM, SamplingParams
from tensorwright.sizes import format_size

ROOM = 1.1
"""The KV cache holds one prompt and a tenth of another, so that another prompt takes the blocks of the first."""


def first_token(llm: LLM, prompt: np.ndarray) -> tuple[float, int]:
    """Returns the seconds to the first token, and how many tokens were not computed."""
    params = SamplingParams(max_tokens=1, temperature=0, detokenize=False)
    metrics = llm.generate({"prompt_token_ids": prompt}, params).metrics
    assert metrics.time_to_first_token is not None
    return metrics.time_to_first_token, metrics.cached_tokens


def drop_from_page_cache(directory: str) -> None:
    for path in Path(directory).rglob("*.kv"):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def measure(engine: str, length: int, directory: str, seed: int) -> dict[str, tuple[float, int]]:
    """Returns, by source, the seconds to the first token and the tokens that came from there."""
    rng = np.random.default_rng(seed)
    prompt, other = (rng.integers(1, 1000, length, dtype=np.int32) for _ in range(2))
    with LLM(engine, max_batch_size=1, enable_prefix_caching=False, kv_cache_memory="64MiB") as llm:
        block, size = llm.engine.kv_block_bytes, llm.engine.block_size
    memory = int(ROOM * length / size) * block
    options: dict[str, Any] = {"kv_cache_memory": memory, "max_batch_size": 1, "prefix_cache_disk": directory}
    found: dict[str, tuple[float, int]] = {}
    with LLM(engine, **options, prefix_cache_memory=2 * memory) as llm:
        found["computed"] = first_token(llm, prompt)
        found["KV cache"] = first_token(llm, prompt)
        first_token(llm, other)
        found["memory"] = first_token(llm, prompt)
    for name in ("disk, in the page cache", "disk"):
        if name == "disk":
            drop_from_page_cache(directory)
        with LLM(engine, **options) as llm:
            found[name] = first_token(llm, prompt)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("engine")
    parser.add_argument("--length", type=int, default=20000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--directory", help="where the blocks are kept; default: the system's place for such files")
    parser.add_argument("--json")
    parser.add_argument("--patience", type=float, default=300.0, help="seconds to wait for an idle machine")
    args = parser.parse_args()
    busy = wait_until_idle(patience=args.patience)
    facts = {**describe(), "busy": round(busy, 2), "length": args.length}
    print(facts)
    runs = []
    for seed in range(args.runs):
        with tempfile.TemporaryDirectory(dir=args.directory) as directory:
            runs.append(measure(args.engine, args.length, directory, seed))
            size = sum(path.stat().st_size for path in Path(directory).rglob("*.kv"))
    medians = {name: statistics.median(run[name][0] for run in runs) for name in runs[0]}
    print(f"files of one run: {format_size(size)}")
    print("| from | time to the first token | against computing | tokens that were not computed |")
    print("|---|---|---|---|")
    for name, seconds in medians.items():
        ratio = medians["computed"] / seconds
        print(f"| {name} | {1000 * seconds:,.0f} ms | {ratio:.1f} times | {runs[0][name][1]:,} |")
    if args.json:
        Path(args.json).write_text(json.dumps({"facts": facts, "runs": runs}))


if __name__ == "__main__":
    main()
