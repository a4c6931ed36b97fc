"""The costs of a step, fitted to steps whose times are known: measured on an engine, or predicted by a roofline.

The form of the costs is that of runtime/core/simulation/cost_model.h: a table over the tokens of a step, and a price
for each pair of attention, position that is read, row of logits, and sequence. All prices are 0 or more, so that no
step is cheaper than a smaller one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from tensorwright.errors import InvalidOptionError

SIZES = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096, 8192, 16384)
"""The sizes of steps, in tokens, at which the table may bend. Between two of them it is a line."""
OUTLIER = 3.0
"""A step that took more than this many times as long as others of its shape counts as if it took just so long, where
prices are set apart. In the sum of all steps it counts in full."""
SPREAD = 100
"""The factors that stand for how steps of the same shape differ."""
SWEEPS = 20000
LEAST = 1e-9


class StepSample(NamedTuple):
    """A step whose time is known. pairs: of a token and a position that it attends to. reads: positions whose keys and
    values are read. rows: of logits."""

    tokens: int
    sequences: int
    rows: int
    pairs: float
    reads: float
    seconds: float


@dataclass(frozen=True)
class StepCosts:
    """The prices of steps, in seconds. sizes, seconds: the table. spread: how much longer or shorter than that single
    steps take, as factors that are equally likely; () if none does. source: where the times are from, in words. error:
    the mean of how far a step is off, as a share of its time. steps: how many the fit rests on."""

    sizes: tuple[int, ...]
    seconds: tuple[float, ...]
    pair_seconds: float
    context_seconds: float
    row_seconds: float
    sequence_seconds: float
    source: str
    spread: tuple[float, ...] = ()
    error: float = 0.0
    steps: int = 0

    def of(self, sample: StepSample) -> float:
        """Returns the mean time of a step, as runtime/core/simulation/cost_model.cc does."""
        prices = np.array([self.pair_seconds, self.context_seconds, self.row_seconds, self.sequence_seconds])
        return float(_table(self, sample.tokens) + prices @ _linear(sample))

    def set_on(self, options: Any) -> None:
        """Sets the prices of a FleetOptions."""
        options.sizes, options.seconds, options.spread = list(self.sizes), list(self.seconds), list(self.spread)
        for name in ("pair_seconds", "context_seconds", "row_seconds", "sequence_seconds"):
            setattr(options, name, getattr(self, name))


def fixed_costs(seconds: float) -> StepCosts:
    """Returns the costs of steps that all take the same time."""
    return StepCosts((1,), (seconds,), 0.0, 0.0, 0.0, 0.0, f"each step takes {seconds:g} s")


def fit_costs(samples: Sequence[StepSample], source: str, *, spread: bool = True) -> StepCosts:
    """Returns the costs that come closest to the samples, in shares of their times. spread: whether how far single
    steps are off becomes a part of the costs, as where steps are measured. Raises InvalidOptionError without samples.
    """
    if not samples:
        raise InvalidOptionError("no step was measured, so there is nothing to simulate with; raise --measure-seconds")
    largest = max(sample.tokens for sample in samples)
    sizes = _sizes_of(samples, largest)
    rows = np.array([[*_ramps(sizes, sample.tokens), *_linear(sample)] for sample in samples])
    seconds = np.array([sample.seconds for sample in samples])
    if seconds.min() <= 0:
        raise InvalidOptionError("every step must take time, one took none; measure again")
    prices = _solve(rows, seconds, np.ones(len(samples)))
    for _ in range(3):  # now the outliers are known
        predicted = np.maximum(rows @ prices, LEAST)
        bounded = np.minimum(seconds, OUTLIER * predicted)
        prices = _solve(rows, bounded, bounded / predicted)
    predicted = np.maximum(rows @ prices, LEAST)
    # The sum of all steps decides the throughput: what the shares of single steps leave over is shared by all.
    prices *= seconds.sum() / predicted.sum()
    table = np.cumsum(prices[: len(sizes)])
    factors = seconds / np.maximum(rows @ prices, LEAST)
    pair, context, row, sequence = (float(price) for price in prices[len(sizes) :])
    return StepCosts(
        sizes,
        tuple(map(float, np.maximum(table, LEAST))),
        pair_seconds=pair,
        context_seconds=context,
        row_seconds=row,
        sequence_seconds=sequence,
        source=source,
        spread=_quantiles(factors) if spread else (),
        error=float(np.mean(np.abs(1 / factors - 1))),
        steps=len(samples),
    )


def _quantiles(factors: np.ndarray) -> tuple[float, ...]:
    """Returns SPREAD numbers, each the mean of as many of the factors, in their order. Their mean is made 1."""
    places = np.linspace(0, len(factors), SPREAD + 1).round().astype(int)
    ordered = np.sort(factors)
    parts = [ordered[a:b].mean() for a, b in pairwise(places) if b > a]
    return tuple(float(part / np.mean(parts)) for part in parts)


def _sizes_of(samples: Sequence[StepSample], largest: int) -> tuple[int, ...]:
    """Returns the sizes at which there are enough samples to tell a bend: some between each and the one before."""
    sizes, before = [1], 1
    tokens = np.array([sample.tokens for sample in samples])
    for size in (*(size for size in SIZES[1:] if size < largest), largest):
        if size > before and np.count_nonzero((tokens > before) & (tokens <= size)) >= 1:
            sizes.append(size)
            before = size
    return tuple(sizes)


def _ramps(sizes: Sequence[int], tokens: int) -> list[float]:
    """Returns what each step of the table adds at this size: the first all of it, the next from 0 to 1 between its
    size and the one before. The last goes on rising behind its size."""
    ramps = [1.0]
    for before, size in pairwise(sizes):
        share = max(0.0, (tokens - before) / (size - before))
        ramps.append(share if size == sizes[-1] else min(1.0, share))
    return ramps


def _linear(sample: StepSample) -> list[float]:
    return [sample.pairs, sample.reads, float(sample.rows), float(sample.sequences)]


def _table(costs: StepCosts, tokens: int) -> float:
    steps = np.diff(costs.seconds, prepend=0.0)
    return float(np.dot(steps, _ramps(costs.sizes, tokens)))


def _solve(rows: np.ndarray, seconds: np.ndarray, slowness: np.ndarray) -> np.ndarray:
    """Returns the prices of 0 or more with the least squares of shares (Lawson and Hanson 1974, chapter 23, solved by
    coordinate descent). slowness: a step that was so many times too slow says so much less."""
    weights = 1.0 / (seconds * np.maximum(slowness, 1.0))
    a, b = rows * weights[:, None], seconds * weights
    scale = np.linalg.norm(a, axis=0)
    scale[scale == 0] = np.inf  # a column that no sample has keeps the price 0
    a = a / scale
    gram, right = a.T @ a, a.T @ b
    prices = np.zeros(a.shape[1])
    for _ in range(SWEEPS):
        largest = 0.0
        for column in np.flatnonzero(np.isfinite(scale)):
            new = max(0.0, prices[column] + (right[column] - gram[column] @ prices) / gram[column, column])
            largest, prices[column] = max(largest, abs(new - prices[column])), new
        if largest < 1e-10 * max(1.0, float(prices.max())):
            break
    return np.where(np.isfinite(scale), prices / scale, 0.0)
