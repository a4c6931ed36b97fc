"""Counts how often a GPU leaves a row to the host's sampler (plugins/draw_tokens), by the definition in numpy. No GPU.

    python benchmarks/gpu/draw_shares.py [--vocabulary 128256] [--draws 2000]

A row's probabilities fall as a power of the rank, as a language model's do: a power of 1.2 is a flat row, 2.5 a peaked
one. The tokens lie in any order.
"""

from __future__ import annotations

import argparse

import numpy as np

from tensorwright.plugins.draw_tokens.op import Draw, draw_row

POWERS = (1.2, 1.6, 2.5)
PARAMETERS: tuple[dict[str, float], ...] = (
    {}, {"top_p": 0.9}, {"top_p": 0.99}, {"top_k": 50}, {"min_p": 0.05}, {"top_k": 50, "top_p": 0.9},
)  # fmt: skip


def undecided(power: float, parameters: dict[str, float], vocabulary: int, draws: int) -> int:
    """Returns of how many draws the token was left to the host."""
    rng = np.random.default_rng(7)
    ranked = -power * np.log(np.arange(1, vocabulary + 1)) + 0.1 * rng.standard_normal(vocabulary)
    row = rng.permutation(ranked).astype(np.float32)
    fields = (Draw(1.0, uniform=float(u), **parameters).fields() for u in rng.random(draws))
    return sum(draw_row(row, np.array(each, np.int32)) < 0 for each in fields)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--vocabulary", type=int, default=128_256)
    parser.add_argument("--draws", type=int, default=2000)
    options = parser.parse_args()
    print(f"rows of {options.draws} that are left to the host, {options.vocabulary} tokens")
    print("power", *PARAMETERS, sep=" | ")
    for power in POWERS:
        print(power, *(undecided(power, some, options.vocabulary, options.draws) for some in PARAMETERS), sep=" | ")


if __name__ == "__main__":
    main()
