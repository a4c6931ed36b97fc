"""How long prompts and outputs are: log-normal lengths of three uses, or one fixed length.

The means are those that DistServe (Zhong et al., OSDI 2024, arXiv:2401.09670, figure 7) gives for the data sets that
it takes for these uses: ShareGPT (chat), LongBench (summarisation), HumanEval (code). It prints no variance: the sigmas
are ours, wide where people write freely, narrow where a task sets the form.
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
    "chat": Profile(LogNormal(755.5, 1.2), LogNormal(200.3, 0.9)),
    "summarisation": Profile(LogNormal(1738.3, 0.5), LogNormal(90.7, 0.6)),
    "code": Profile(LogNormal(171.3, 0.5), LogNormal(98.2, 0.7)),
}


def draw_lengths(profile: str, count: int, prompt: int, output: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """(tokens of the prompt, tokens of the output) of each request. The two numbers are the lengths of `fixed`, and the
    longest of every other profile."""
    if profile == FIXED:
        return [(prompt, output)] * count
    chosen = PROFILES[profile]
    prompts = chosen.prompt.sample(count, prompt, rng)
    return list(zip(prompts, chosen.output.sample(count, output, rng), strict=True))
