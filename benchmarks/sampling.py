"""What a step pays for sampling: milliseconds for the tokens of all its rows, by vocabulary, batch and parameters.

Rows are normal random numbers (flat: top_p 0.9 keeps tens of thousands of tokens); peaked, eight tokens stand out by
16, and top_p keeps some of those, as in text. Every setting is timed once a round, settings after each other, so that a
machine's moods meet all of them alike. `read` is a sum over the logits by one thread's
numpy, spread over the rows: what their bytes cost. With --cpu-time, which is for busy machines and one thread, the
processor's time is counted instead of the clock's.

    python benchmarks/sampling.py --threads 1 2
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import machine
import numpy as np

from tensorwright.runtime import _runtime, _testing

SETTINGS: dict[str, tuple[str, dict[str, float]]] = {
    "greedy": ("flat", {"temperature": 0}),
    "temperature 1": ("flat", {}),
    "temperature 0.7": ("flat", {"temperature": 0.7}),
    "top_p 0.9, flat": ("flat", {"top_p": 0.9}),
    "temperature 1, peaked": ("peaked", {}),
    "top_p 0.9, peaked": ("peaked", {"top_p": 0.9}),
    "top_k 50": ("flat", {"top_k": 50}),
    "min_p 0.05": ("peaked", {"min_p": 0.05}),
    "typical_p 0.95, flat": ("flat", {"typical_p": 0.95}),
    "typical_p 0.95, peaked": ("peaked", {"typical_p": 0.95}),
    "XTC, flat": ("flat", {"xtc_probability": 1.0, "xtc_threshold": 0.1}),
    "greedy, logprobs 5": ("flat", {"temperature": 0, "logprobs": 5}),
    "temperature 1, logprobs 5": ("flat", {"logprobs": 5}),
}
"""Kinds of rows, with parameters. Greedy is first, for the ratios."""


def rows_of(kind: str, batch: int, vocab: int) -> np.ndarray:
    """Returns float32 [batch, vocab]."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((batch, vocab), np.float32)
    if kind == "peaked":
        for row in rows:
            row[rng.integers(0, vocab, 8)] += np.float32(16)
    return rows


def parameters(**values: float) -> _runtime.Sampling:
    sampling = _runtime.Sampling()
    sampling.temperature = 1.0
    for name, value in values.items():
        setattr(sampling, name, value)
    return sampling


def table(vocab: int, batch: int, threads: int, rounds: int, clock: Callable[[], float]) -> dict[str, float]:
    """Returns the median seconds of each setting, and of reading the logits."""
    sampler = _testing.RowSampler(threads)
    rows = {kind: rows_of(kind, batch, vocab) for kind in ("flat", "peaked")}
    cases = {name: (rows[kind], parameters(**values)) for name, (kind, values) in SETTINGS.items()}
    times: dict[str, list[float]] = {name: [] for name in (*cases, "read")}
    for position in range(rounds + 1):  # the first round is not counted
        for name, (logits, sampling) in cases.items():
            begin = clock()
            sampler.sample(logits, sampling, 1, position * batch)
            times[name].append(clock() - begin)
        begin = clock()
        rows["flat"].sum()
        times["read"].append((clock() - begin) / threads)
    return {name: statistics.median(taken[1:]) for name, taken in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab", type=int, nargs="+", default=[151_000, 255_000])
    parser.add_argument("--batch", type=int, nargs="+", default=[16, 1])
    parser.add_argument("--threads", type=int, nargs="+", default=[2])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--cpu-time", action="store_true", help="count the processor's time; one thread only")
    args = parser.parse_args()
    if args.cpu_time and args.threads != [1]:
        parser.error("--cpu-time counts every thread's time: use it with --threads 1")
    clock = time.process_time if args.cpu_time else time.perf_counter
    print({**machine.describe(), "isa": _runtime.isa(), "clock": "processor" if args.cpu_time else "wall"})
    for vocab in args.vocab:
        for batch in args.batch:
            for threads in args.threads:
                taken = table(vocab, batch, threads, args.rounds, clock)
                print(f"\nvocabulary {vocab}, batch {batch}, threads {threads}\n")
                print("| | ms a step | of greedy | of reading |\n|---|---|---|---|")
                for name, seconds in taken.items():
                    ratios = f"{seconds / taken['greedy']:.2f} | {seconds / taken['read']:.2f}"
                    print(f"| {name} | {seconds * 1e3:.3f} | {ratios} |")


if __name__ == "__main__":
    main()
