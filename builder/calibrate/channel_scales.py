"""Chooses the scales of the input channels of quantized matrices: one walk through the layers on a text.

fold_channel_scales has put vectors into the weights of a graph: a matrix times s, and what makes its inputs divided by
s. Any s leaves the product as it is, but not what rounding costs. When the walk comes to a product, some vectors are
tried on a part of the text's tokens, and the one with the smallest error of the products wins. No vector at all is
tried too, so that no product becomes worse on these tokens. Memory holds the values between two layers, and a product's
inputs.

A vector is a power of the size of each channel's inputs, over a power of the size of its weights:

    awq          s = mean |x| ^ a, and mean |x| ^ a / mean |w| ^ (1 - a)    (https://arxiv.org/abs/2306.00978, eq. 5)
    smoothquant  s = max |x| ^ a / max |w| ^ (1 - a)                        (https://arxiv.org/abs/2211.10438, eq. 4)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from tensorwright.builder.calibrate.sample import Sample
from tensorwright.builder.emit.pack_rows import RowPacker, no_codes
from tensorwright.builder.emit.quantization_record import by_name, place_of
from tensorwright.builder.emit.quantized_weights import Multiplier, PackedPanels
from tensorwright.builder.measure.reference import gather_embeddings
from tensorwright.builder.measure.streamed_weights import StreamedMatrices, StreamedWeights, parts_of, stored
from tensorwright.builder.phases import Advance
from tensorwright.engine_format.calibrations import SMOOTHQUANT
from tensorwright.engine_format.weight_formats import WeightFormat
from tensorwright.errors import CheckpointError
from tensorwright.ir.graph import Graph, Node, Value
from tensorwright.ir.ragged import RaggedAdapter
from tensorwright.ir.walk import Walk
from tensorwright.ir.weights import ChannelScales, Scaled, WeightExpr, scales_of, without_scales
from tensorwright.models.checkpoint import Checkpoint
from tensorwright.models.dtypes import Ranges, Tensor
from tensorwright.models.read_weights import read_part

SEARCH_TOKENS = 512
"""The most tokens, spread evenly over the text, on which vectors are compared."""
EXPONENTS = tuple(round(0.1 * i, 1) for i in range(1, 10))
"""The exponents a that are tried."""
MAX_SPREAD = 1024.0
"""The largest scale of a channel, over their geometric mean; the smallest is one over it."""


@dataclass(frozen=True)
class Site:
    """A value that is divided by a vector, and the products that read it. by: the vector for its columns."""

    scales: ChannelScales
    by: WeightExpr
    readers: list[Node]

    def spread(self, vector: np.ndarray) -> np.ndarray:
        """Returns what the columns of the value are divided by, for numbers of the vector."""
        return read_part(self.by, _OneVector(vector), ((0, self.by.shape(_OneVector(vector))[0]),)).data

    def collect(self, columns: np.ndarray, largest: bool) -> np.ndarray:
        """Returns, for each number of the vector, the largest or the mean of the columns that it serves."""
        of = self.spread(np.arange(self.scales.size, dtype=np.float32)).astype(np.int64)
        found = np.zeros(self.scales.size)
        if largest:
            np.maximum.at(found, of, columns)
            return found
        np.add.at(found, of, columns)
        return found / np.bincount(of, minlength=self.scales.size)


@dataclass(frozen=True)
class _OneVector:
    """A TensorSource with the numbers of one vector."""

    vector: np.ndarray

    def shape(self, name: str) -> tuple[int, ...]:
        return self.vector.shape

    def dtype(self, name: str) -> str:
        return "float32"

    def read_part(self, name: str, ranges: Ranges) -> Tensor:
        ((start, end),) = ranges
        return Tensor("float32", self.vector[start:end])


def choose_scales(cached: Graph, checkpoint: Checkpoint, sample: Sample, advance: Advance) -> dict[int, float]:
    """Chooses every vector of a cached graph; they are in `checkpoint.channel_scales` afterwards.

    Returns for each number of a vector the squared error of its products over that without the vector: 1 where no
    vector is better than none, and is chosen. advance: gets (vectors done, vectors in all).
    """
    graph = cached.clone()
    sites = find_sites(graph)
    gains: dict[int, float] = {}
    if not sites:
        return gains
    inputs = RaggedAdapter(graph, sample.sequences).inputs([len(ids) for ids in sample.sequences])
    inputs.update(gather_embeddings(graph, checkpoint, inputs["token_ids"]))

    def done(site: Site, gain: float) -> None:
        gains[site.scales.number] = gain
        advance(len(gains), len(sites))

    with ScalingWeights(checkpoint, graph.facts.channel_scales, sites, done).running() as weights:
        walk = Walk(graph, {value.name: inputs[value.name] for value in graph.inputs}, weights)
        while len(gains) < len(sites):
            walk.advance()
    return gains


def find_sites(graph: Graph) -> dict[Value, Site]:
    """Returns the values of a graph that are divided by a vector, in order."""
    sites: dict[Value, Site] = {}
    for node in graph.nodes:
        weight = node.optional(1) if node.op in ("linear", "quantized_linear") else None
        expr = None if weight is None or weight.producer.op != "weight" else stored(weight)
        if isinstance(expr, Scaled):
            (scales,) = scales_of(expr.by)
            sites.setdefault(node.operand(0), Site(scales, expr.by, [])).readers.append(node)
    return sites


def drop_ones(graph: Graph, gains: dict[int, float]) -> None:
    """Takes the vectors out of a graph that were left at ones."""
    ones = frozenset(number for number, gain in gains.items() if gain == 1)
    for node in graph.find("weight"):
        node.attrs["expr"] = without_scales(node.attrs["expr"], ones)


def scales_record(cached: Graph, gains: dict[int, float]) -> dict[str, list[float | None]]:
    """Returns the gain of every product that reads a scaled value, by place: the root of the squared errors' ratio."""
    found = {}
    for site in find_sites(cached).values():
        for node in site.readers:
            found[place_of(node, stored(node.operand(1)))] = gains[site.scales.number] ** 0.5
    return by_name(found)


class ScalingWeights:
    """A `ProductSource` for the interpreter, which chooses a vector when its first product comes, and multiplies with
    it. The vectors that are not chosen yet are ones.

    method: one of `Calibration.scales`. done: gets each site and its gain.
    """

    def __init__(
        self, checkpoint: Checkpoint, method: str, sites: dict[Value, Site], done: Callable[[Site, float], None]
    ):
        self._checkpoint, self._method, self._sites, self._done = checkpoint, method, sites, done
        self._streamed = StreamedWeights(checkpoint)
        self._nearest = PackedPanels(checkpoint)
        self._divisors: dict[Value, np.ndarray] = {}

    @contextmanager
    def running(self) -> Iterator[ScalingWeights]:
        """Gives this object, with its threads."""
        with self._streamed:
            yield self

    def __call__(self, expr: WeightExpr) -> torch.Tensor:
        """Returns the whole weight."""
        return self._streamed(expr)

    def matrices(self, node: Node, operand: Value) -> StreamedMatrices:
        """Returns the matrices of a mixture of experts."""
        return self._streamed.matrices(node, operand)

    def product(self, node: Node, x: torch.Tensor) -> torch.Tensor:
        """Returns the result of a node; before that it chooses the vector of its input, if nobody has."""
        value = node.operand(0)
        if node.op == "matmul" or value not in self._sites:
            return self._streamed.product(node, x)
        if value not in self._divisors:
            self._divisors[value] = self._choose(self._sites[value], x.reshape(-1, x.shape[-1]).float().numpy())
        # The vector was ones while x was computed.
        return self._streamed.product(node, x / torch.from_numpy(self._divisors[value]))

    def _choose(self, site: Site, x: np.ndarray) -> np.ndarray:
        """Returns what the columns of x are divided by."""
        if not np.isfinite(x).all():
            raise CheckpointError(
                "the inputs of a product are infinite or not a number, so its channels cannot be scaled"
            )
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            vectors = list(self._candidates(site, x, pool))
            part = x[np.unique(np.linspace(0, len(x) - 1, min(SEARCH_TOKENS, len(x))).astype(int))]
            errors = self._errors(site, part, vectors, pool)
        best = int(np.argmin(errors))
        scales = vectors[best]
        self._checkpoint.channel_scales[site.scales.name] = scales
        self._done(site, 1.0 if best == 0 else float(errors[best] / errors[0]))
        return site.spread(scales)

    def _candidates(self, site: Site, x: np.ndarray, pool: ThreadPoolExecutor) -> Iterator[np.ndarray]:
        """Yields vectors, the first of which is all ones."""
        yield np.ones(site.scales.size, np.float32)
        largest = self._method == SMOOTHQUANT
        inputs = site.collect(np.abs(x).max(axis=0) if largest else np.abs(x).mean(axis=0, dtype=np.float64), largest)
        weights = site.collect(self._sizes(site, largest, pool), largest)
        if not inputs.any() or not weights.any():
            return
        for exponent in EXPONENTS:
            yield _balanced(inputs, weights, exponent, 1 - exponent)
            if not largest:
                yield _balanced(inputs, weights, exponent, 0.0)

    def _sizes(self, site: Site, largest: bool, pool: ThreadPoolExecutor) -> np.ndarray:
        """Returns the largest or the mean weight of each column, over the quantized matrices of a site."""
        found = []
        for expr, _ in self._quantized(site):
            rows, k = expr.shape(self._checkpoint)

            def sizes(ends: tuple[int, int], expr: WeightExpr = expr) -> np.ndarray:
                w = np.abs(self._streamed.rows(expr, *ends).numpy())
                return w.max(axis=0).astype(np.float64) if largest else w.sum(axis=0, dtype=np.float64)

            parts = np.stack(list(pool.map(sizes, parts_of([rows], k))))
            found.append(parts.max(axis=0) if largest else parts.sum(axis=0) / rows)
        return np.max(found, axis=0) if largest else np.mean(found, axis=0)

    def _quantized(self, site: Site) -> list[tuple[WeightExpr, WeightFormat]]:
        """Returns the quantized matrices of a site, before any scale of their columns, with their formats."""
        ones = frozenset({site.scales.number})
        nodes = [node for node in site.readers if "format" in node.attrs]
        return [(without_scales(stored(node.operand(1)), ones), node.attrs["format"]) for node in nodes]

    def _errors(self, site: Site, x: np.ndarray, vectors: list[np.ndarray], pool: ThreadPoolExecutor) -> np.ndarray:
        """Returns for each vector the squared errors of the products, each over the squares of the exact product."""
        divisors = [site.spread(vector) for vector in vectors]
        total = np.zeros(len(vectors))
        for expr, fmt in self._quantized(site):
            trial = _Trial(self._streamed, self._nearest, expr, fmt, x, divisors)
            ranges = parts_of([expr.shape(self._checkpoint)[0]], x.shape[1])
            exact, *errors = np.sum(list(pool.map(trial.squares, ranges)), axis=0)
            total += np.array(errors) / exact if exact > 0 else 0.0
        return total


class _Trial:
    """One matrix whose product with x [T, K] is computed with several vectors of divisors [K], the first all ones."""

    def __init__(
        self, streamed: StreamedWeights, nearest: PackedPanels, expr: WeightExpr, fmt: WeightFormat, x: np.ndarray,
        divisors: list[np.ndarray],
    ):  # fmt: skip
        self._streamed, self._nearest, self._expr, self._fmt, self._divisors = streamed, nearest, expr, fmt, divisors
        self._plain = without_scales(expr)
        self._columns = torch.from_numpy(np.ascontiguousarray(x.T))
        self._inputs = [Multiplier(np.ascontiguousarray(x / divisor, np.float32), fmt) for divisor in divisors]

    def squares(self, ends: tuple[int, int]) -> np.ndarray:
        """Returns, over rows [start, end) of the matrix, the sum of the squares of the exact product, and that of the
        errors with each vector. Any thread may ask."""
        start, end = ends
        w = self._streamed.rows(self._expr, start, end)
        exact = (w @ self._columns).T.numpy()
        errors = [
            multiplier.product(self._panels(w.numpy(), start, end, divisor), end - start) - exact
            for multiplier, divisor in zip(self._inputs, self._divisors, strict=True)
        ]
        return np.array([float(np.square(each, dtype=np.float64).sum()) for each in (exact, *errors)])

    def _panels(self, w: np.ndarray, start: int, end: int, divisor: np.ndarray) -> np.ndarray:
        if divisor is self._divisors[0]:  # The codes of a quantized checkpoint may serve as they are.
            return self._nearest.panels(self._plain, self._fmt, start, end)
        scaled = w * divisor
        panels, _ = RowPacker(self._fmt, w.shape[1], lambda first, last: scaled[first:last], no_codes).whole(
            0, end - start
        )
        return panels


def _balanced(inputs: np.ndarray, weights: np.ndarray, rising: float, falling: float) -> np.ndarray:
    """Returns inputs ^ rising / weights ^ falling, float32, over its geometric mean. A channel that is never used
    counts as the least used one."""
    logarithm = rising * _logarithm(inputs) - falling * _logarithm(weights)
    logarithm -= logarithm.mean()
    bound = np.log(MAX_SPREAD)
    return np.exp(np.clip(logarithm, -bound, bound)).astype(np.float32)


def _logarithm(sizes: np.ndarray) -> np.ndarray:
    return np.log(np.maximum(sizes, sizes[sizes > 0].min()))
