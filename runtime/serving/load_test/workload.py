"""When a load test sends its requests, and how long their prompts and outputs are.

The lengths are log-normal for three uses, or fixed. Means and sigmas are our choice and do not fit anybody's traffic:
chat has prompts of a conversation and answers of a paragraph or two, and both vary much; summarisation has long
prompts and short outputs; code has short prompts and short outputs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

ARRIVALS = ("poisson", "burst")


def poisson_times(count: int, rate: float, rng: np.random.Generator) -> list[float]:
    """Independent arrivals, `rate` of them per second: the gaps are exponential. The first comes after such a gap."""
    return np.cumsum(rng.exponential(1.0 / rate, count)).tolist()


def burst_times(count: int, rate: float | None, size: int | None) -> list[float]:
    """`size` at the same moment, `rate` per second in the mean; all at once without a size or a rate."""
    if size is None or rate is None:
        return [0.0] * count
    return [(i // size) * (size / rate) for i in range(count)]


@dataclass(frozen=True)
class LogNormal:
    """Lengths in tokens whose logarithm is normal: `mean` is that of the lengths, `sigma` that of the logarithm."""

    mean: float
    sigma: float

    def sample(self, count: int, most: int, rng: np.random.Generator) -> list[int]:
        """Whole numbers from 1 to `most`; what lies outside takes the bound, so the mean falls with a low `most`."""
        values = rng.lognormal(math.log(self.mean) - self.sigma**2 / 2, self.sigma, count)
        return np.clip(np.rint(values), 1, most).astype(int).tolist()


@dataclass(frozen=True)
class Profile:
    prompt: LogNormal
    output: LogNormal


FIXED = "fixed"
PROFILES = {
    "chat": Profile(LogNormal(750, 1.2), LogNormal(200, 0.9)),
    "summarisation": Profile(LogNormal(1750, 0.5), LogNormal(90, 0.6)),
    "code": Profile(LogNormal(170, 0.5), LogNormal(100, 0.7)),
}


def draw_lengths(profile: str, count: int, prompt: int, output: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """(tokens of the prompt, tokens of the output) of each request. The two numbers are the lengths of `fixed`, and the
    longest of every other profile."""
    if profile == FIXED:
        return [(prompt, output)] * count
    chosen = PROFILES[profile]
    prompts = chosen.prompt.sample(count, prompt, rng)
    return list(zip(prompts, chosen.output.sample(count, output, rng), strict=True))
