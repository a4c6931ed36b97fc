"""What preempted requests cost: their blocks are computed again, or come back from memory.

    python benchmarks/preemption_swap.py ENGINE [--requests 12] [--prompt 600] [--output 200] [--rounds 3] [--json FILE]

Requests run at once in a KV cache that holds about a third of them, so that they are preempted again and again. Two
engines, one without a tier and one with --prefix-cache-memory, answer the same requests in turns, in one process. Their
tokens are compared: they are the same. For each round it prints the seconds until the last request ended, the
preemptions, and the tokens of preempted requests that the cache had and that were computed once more.

Needs an idle machine for times; the counts say the same on a busy one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from machine import describe, wait_until_idle

from tensorwright import LLM, SamplingParams

COUNTS = (
    "preemptions", "resumed_kept_tokens", "resumed_computed_tokens", "resumed_fetches", "resumed_passed_over",
    "prefix_fetches_failed",
)  # fmt: skip
SHARE = 3
"""The KV cache holds the tokens of one request in so many."""


def run(llm: LLM, prompts: list[np.ndarray], output: int) -> tuple[dict[str, Any], list[tuple[int, ...]]]:
    """Returns the seconds and counts of a round, and the tokens of each request."""
    before = llm.get_stats()
    params = SamplingParams(max_tokens=output, temperature=0, ignore_eos=True, detokenize=False)
    begin = time.perf_counter()
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params)
    seconds = time.perf_counter() - begin
    after = llm.get_stats()
    counted = {name: after[name] - before[name] for name in COUNTS}
    return {"seconds": seconds, **counted}, [tuple(output.outputs[0].token_ids) for output in outputs]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("engine")
    parser.add_argument("--requests", type=int, default=12)
    parser.add_argument("--prompt", type=int, default=600)
    parser.add_argument("--output", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json")
    parser.add_argument("--patience", type=float, default=300.0, help="seconds to wait for an idle machine")
    args = parser.parse_args()
    busy = wait_until_idle(patience=args.patience)
    facts = {**describe(), "busy": round(busy, 2), **vars(args)}
    print(facts)
    with LLM(args.engine, max_batch_size=1, kv_cache_memory="64MiB") as llm:
        block, size = llm.engine.kv_block_bytes, llm.engine.block_size
    blocks = args.requests * (args.prompt + args.output) // SHARE // size
    options: dict[str, Any] = {"kv_cache_memory": blocks * block, "max_batch_size": args.requests}
    rounds: dict[str, list[dict[str, Any]]] = {"computed": [], "swapped": []}
    rng = np.random.default_rng(0)
    with LLM(args.engine, **options) as plain, LLM(args.engine, **options, prefix_cache_memory="2GiB") as tiered:
        for number in range(args.rounds):
            prompts = [rng.integers(1, 1000, args.prompt, dtype=np.int32) for _ in range(args.requests)]
            tokens = {}
            for name, llm in (("computed", plain), ("swapped", tiered))[:: 1 if number % 2 else -1]:
                figures, tokens[name] = run(llm, prompts, args.output)
                rounds[name].append(figures)
                print(name, figures, flush=True)
            assert tokens["computed"] == tokens["swapped"], "a preemption changed tokens"
    print("| preempted requests | seconds | preemptions | reads begun | tokens kept | computed once more |")
    print("|---|---|---|---|---|---|")
    for name, found in rounds.items():
        middle = {key: statistics.median(each[key] for each in found) for key in found[0]}
        print(
            f"| {name} | {middle['seconds']:.1f} | {middle['preemptions']:.0f} | {middle['resumed_fetches']:.0f} "
            f"| {middle['resumed_kept_tokens']:,.0f} | {middle['resumed_computed_tokens']:,.0f} |"
        )
    if args.json:
        Path(args.json).write_text(json.dumps({"facts": facts, "rounds": rounds}))


if __name__ == "__main__":
    main()
