"""How long prompts and outputs are: log-normal lengths of three uses, or one fixed length.

Means and sigmas are our choice, not a fit to anybody's traffic: chat has prompts of a conversation and answers of a
paragraph or two, wide both; summarisation long prompts and short outputs; code short prompts and outputs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


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
