"""In-flight against static batching: 15 of 16 requests short, 1 of 16 long, on one engine.

    python benchmarks/inflight_batching.py ENGINE [--short 32] [--long 512] [--groups 8]

Static batching runs a batch of 16 until its longest request is done; the slots of finished requests go on
computing, as they do in a padded batch. Useful tokens per second are compared over a saturated queue: the
in-flight figure is taken from the moment the batch is full until the waiting queue is empty, so that neither the
ramp nor the tail of a finite run is counted. The ideal ratio is max / mean of the output lengths.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

BATCH = 16


def lengths(groups: int, short: int, long: int, seed: int = 0) -> list[int]:
    """Returns output lengths of groups of 16, each with the long one at a random place."""
    rng = random.Random(seed)
    table = []
    for _ in range(groups):
        group = [short] * (BATCH - 1) + [long]
        rng.shuffle(group)
        table += group
    return table


def prompt(index: int, tokens: int = 4) -> dict[str, list[int]]:
    rng = random.Random(1000 + index)
    return {"prompt_token_ids": [rng.randrange(10, 8000) for _ in range(tokens)]}


def static_rate(llm, wanted: list[int]) -> float:
    """Returns useful tokens per second of whole batches that run until their longest request is done."""
    from tensorwright import SamplingParams

    start = time.perf_counter()
    for first in range(0, len(wanted), BATCH):
        batch = wanted[first : first + BATCH]
        params = SamplingParams(max_tokens=max(batch), temperature=0.0, ignore_eos=True, detokenize=False)
        llm.generate([prompt(first + i) for i in range(len(batch))], params)
    return sum(wanted) / (time.perf_counter() - start)


def inflight_rate(llm, wanted: list[int]) -> float:
    """Returns tokens per second while requests are waiting, as the engine itself counts them."""
    from tensorwright import SamplingParams

    handles = [
        llm.generate_async(prompt(i), SamplingParams(max_tokens=n, temperature=0.0, ignore_eos=True, detokenize=False))
        for i, n in enumerate(wanted)
    ]
    while llm.get_stats()["running"] < BATCH:
        time.sleep(0.01)
    start, before = time.perf_counter(), llm.get_stats()["generated_tokens"]
    while llm.get_stats()["waiting"] > 0:
        time.sleep(0.005)
    elapsed, after = time.perf_counter() - start, llm.get_stats()["generated_tokens"]
    for handle in handles:
        handle.result()
    return (after - before) / elapsed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine")
    parser.add_argument("--short", type=int, default=32)
    parser.add_argument("--long", type=int, default=512)
    parser.add_argument("--groups", type=int, default=8, help="groups of 16 requests in the in-flight run")
    parser.add_argument("--static-groups", type=int, default=2, help="groups of 16 in each static run")
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()

    from machine import describe, wait_until_idle

    from tensorwright import LLM

    mean = (args.short * (BATCH - 1) + args.long) / BATCH
    ideal = args.long / mean
    print(describe(), f"short {args.short}, long {args.long}, ideal ratio {ideal:.2f}")
    with LLM(args.engine, max_batch_size=BATCH, max_num_tokens=512, enable_prefix_caching=False,
             max_queue_size=BATCH * args.groups + BATCH, kv_cache_memory="1GiB") as llm:  # fmt: skip
        for _ in range(args.rounds):
            busy = wait_until_idle()
            static = static_rate(llm, lengths(args.static_groups, args.short, args.long))
            inflight = inflight_rate(llm, lengths(args.groups, args.short, args.long))
            print(f"static {static:.1f} tok/s, in-flight {inflight:.1f} tok/s, ratio {inflight / static:.2f},", end=" ")
            print(f"{inflight / static / ideal:.1%} of ideal, machine {busy:.1%} busy before")


if __name__ == "__main__":
    main()
