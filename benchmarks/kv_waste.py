"""How much memory of the KV cache holds no token, by the size of its blocks, on published lengths of requests.

    python benchmarks/kv_waste.py AzureLLMInferenceTrace_conv.csv AzureLLMInferenceTrace_code.csv

A file has a row for each request, as in the Azure LLM inference traces of 2023 (insight/simulate/arrival_file.py).
ShareGPT and Alpaca are drawn from log-normals with the means that Kwon et al. 2023 (PagedAttention, section 6.1) give.
A request holds blocks for its prompt from its first step on, and one more each time that its last is full, until its
answer is complete. The share is that of all held slots, summed over all steps of all requests: the mean of what a
server with many requests sees.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import numpy as np

from tensorwright.insight.simulate.arrival_file import read_arrivals

BLOCKS = (8, 16, 32, 64)
DRAWN = {"ShareGPT, drawn": (161.3, 337.9), "Alpaca, drawn": (19.3, 58.5)}
"""The mean tokens of prompts and of answers."""
SIGMA = 1.0
COUNT = 20000
MAX_ROWS = 1_000_000


def read(path: Path) -> list[tuple[int, int]]:
    """Returns (tokens of the prompt, tokens of the answer) of each request."""
    trace = read_arrivals(path, MAX_ROWS)
    return list(zip(trace.prompts.tolist(), trace.outputs.tolist(), strict=True))


def drawn(prompt: float, answer: float) -> list[tuple[int, int]]:
    rng = np.random.default_rng(0)
    columns = [
        np.maximum(1, np.rint(rng.lognormal(math.log(mean) - SIGMA**2 / 2, SIGMA, COUNT))).astype(int).tolist()
        for mean in (prompt, answer)
    ]
    return list(zip(*columns, strict=True))


def waste(lengths: list[tuple[int, int]], block: int) -> float:
    """Returns the share of held slots that hold no token."""
    held = used = 0
    for prompt, answer in lengths:
        positions = np.arange(prompt, prompt + answer)  # after each step of the request
        used += int(positions.sum())
        held += int((-(-positions // block)).sum()) * block
    return 1 - used / held


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    loads = {path.stem: read(path) for path in args.files} | {name: drawn(*means) for name, means in DRAWN.items()}
    table = {name: {block: waste(lengths, block) for block in BLOCKS} for name, lengths in loads.items()}
    print(f"{'':36}{'requests':>9}{'prompt':>8}{'answer':>8}" + "".join(f"{f'of {block}':>8}" for block in BLOCKS))
    for name, lengths in loads.items():
        prompt, answer = (np.mean([pair[i] for pair in lengths]) for i in range(2))
        shares = "".join(f"{share:8.1%}" for share in table[name].values())
        print(f"{name:36}{len(lengths):9}{prompt:8.0f}{answer:8.0f}{shares}")
    if args.json is not None:
        args.json.write_text(json.dumps(table, indent=2))


if __name__ == "__main__":
    main()
