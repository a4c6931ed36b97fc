"""Draws the times at which a load test sends its requests, and the lengths of their prompts and outputs.

The lengths are log-normal for three uses, or fixed. The means and sigmas are chosen and are not fitted to any traffic:
chat has prompts of a conversation and answers of a paragraph or two, and both vary much; summarisation has long
prompts and short outputs; code has short prompts and short outputs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tensorwright.options.bench import FIXED


def poisson_times(count: int, rate: float, rng: np.random.Generator) -> list[float]:
    """Returns the times of `count` independent arrivals, `rate` per second, in seconds. All gaps are exponential, also
    the one before the first arrival."""
    return np.cumsum(rng.exponential(1.0 / rate, count)).tolist()


def burst_times(count: int, rate: float | None, size: int | None) -> list[float]:
    """Returns the times of `count` arrivals in seconds: `size` arrive at the same moment, `rate` per second in the
    mean. Without a size or a rate, all arrive at once."""
    if size is None or rate is None:
        return [0.0] * count
    return [(i // size) * (size / rate) for i in range(count)]


@dataclass(frozen=True)
class LogNormal:
    """Lengths in tokens whose logarithm is normal. mean: the mean of the lengths. sigma: the logarithm's standard
    deviation."""

    mean: float
    sigma: float

    def sample(self, count: int, most: int, rng: np.random.Generator) -> list[int]:
        """Draws `count` whole numbers from 1 to `most`. Numbers outside take the bound, so a low `most` lowers the
        mean."""
        values = rng.lognormal(math.log(self.mean) - self.sigma**2 / 2, self.sigma, count)
        return np.clip(np.rint(values), 1, most).astype(int).tolist()


@dataclass(frozen=True)
class Profile:
    prompt: LogNormal
    output: LogNormal


LENGTHS = {
    "chat": Profile(LogNormal(750, 1.2), LogNormal(200, 0.9)),
    "summarisation": Profile(LogNormal(1750, 0.5), LogNormal(90, 0.6)),
    "code": Profile(LogNormal(170, 0.5), LogNormal(100, 0.7)),
}


def draw_lengths(profile: str, count: int, prompt: int, output: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Returns the pair (tokens of the prompt, tokens of the output) for each request. `prompt` and `output` are the
    lengths of the profile `fixed`, and the bounds of every other profile."""
    if profile == FIXED:
        return [(prompt, output)] * count
    chosen = LENGTHS[profile]
    prompts = chosen.prompt.sample(count, prompt, rng)
    return list(zip(prompts, chosen.output.sample(count, output, rng), strict=True))
