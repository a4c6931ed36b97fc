"""Chooses the channels of each product's inputs that are kept as they are: one walk through the layers on a text.

    x W^T  =  x_S W_S^T + x_0 W^T        x_S, W_S: some columns, in the type of activations; x_0: x with zeros in them

Only x_0 is rounded to 8 bits (passes/keep_outlier_columns.py). When the walk comes to a value that quantized products
read, its channels are put in order by the mean of their squares, and the products are computed on a part of the text's
tokens, with none kept, one, two, four and so on, by the engine's kernels. A channel costs 16 bits for each row of the
matrices. As many bits more for every weight would take the squared error to a quarter for each bit, so the number with
the least error times four to the power of the bits that it costs is chosen; and none, if it saves less than one bit
for every weight would.

The walk computes with unrounded weights, whatever the layers before have kept. Every product that reads one value keeps
the same channels.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch

from tensorwright.builder.calibrate.sample import Sample
from tensorwright.builder.emit.quantization_record import LM_HEAD, by_name, place_of, role_of
from tensorwright.builder.emit.quantized_weights import Multiplier, PackedPanels
from tensorwright.builder.measure.reference import gather_embeddings
from tensorwright.builder.measure.streamed_weights import StreamedMatrices, StreamedWeights, parts_of, stored
from tensorwright.builder.phases import Advance
from tensorwright.engine_format.calibrations import rounds_inputs
from tensorwright.engine_format.weight_formats import QuantizeSpec, WeightFormat
from tensorwright.ir.graph import Graph, Node, Value
from tensorwright.ir.ragged import RaggedAdapter
from tensorwright.ir.walk import Walk
from tensorwright.ir.weights import WeightExpr
from tensorwright.models.checkpoint import Checkpoint
from tensorwright.passes.quantize_weights import format_for, quantizable

SEARCH_TOKENS = 512
"""The most tokens, spread evenly over the text, on which numbers of channels are compared."""
MOST_COLUMNS = 64
"""The most channels of a product that are kept."""
LEAST_WIDTH = 16
"""A product keeps at most one channel of so many."""
LEAST_GAIN = 4.0
"""How much smaller the squared error must become, at least: as much as by one bit more for every weight."""


@dataclass(frozen=True)
class Site:
    """A value that is rounded, and the matrices of the products that read it, with their formats."""

    matrices: list[tuple[WeightExpr, WeightFormat]] = field(default_factory=list)


def choose_columns(
    cached: Graph, checkpoint: Checkpoint, spec: QuantizeSpec, sample: Sample, advance: Advance
) -> dict[str, list[int]]:
    """Returns the fact "outlier_columns" of a cached graph, whose matrices will have the formats of `spec`.

    advance: gets (values done, values in all). Products without such columns are not in the answer.
    """
    graph = cached.clone()
    sites = find_sites(graph, spec)
    chosen: dict[str, list[int]] = {}
    if not sites:
        return chosen
    done = 0

    def take(site: Site, columns: list[int]) -> None:
        nonlocal done
        done += 1
        chosen.update({str(expr): columns for expr, _ in site.matrices if columns})
        advance(done, len(sites))

    inputs = RaggedAdapter(graph, sample.sequences).inputs([len(ids) for ids in sample.sequences])
    inputs.update(gather_embeddings(graph, checkpoint, inputs["token_ids"]))
    with ChoosingWeights(checkpoint, sites, take).running() as weights:
        walk = Walk(graph, {value.name: inputs[value.name] for value in graph.inputs}, weights)
        while done < len(sites):
            walk.advance()
    return chosen


def find_sites(graph: Graph, spec: QuantizeSpec) -> dict[Value, Site]:
    """Returns the values that linear layers will round, in order.

    Left out are lm_head, whose logits are computed some positions at a time; matrices that the family keeps in float32;
    and a matrix that multiplies several values.
    """
    wide = set(graph.facts.wide)
    products = [
        (node, fmt)
        for node in quantizable(graph)
        if node.op == "linear" and role_of(node) != LM_HEAD and wide.isdisjoint(stored(node.operand(1)).refs())
        if (fmt := format_for(node, spec)) is not None and rounds_inputs(fmt)
    ]
    inputs = Counter(stored(node.operand(1)) for node, _ in products)
    sites: dict[Value, Site] = {}
    for node, fmt in products:
        if inputs[stored(node.operand(1))] == 1:
            sites.setdefault(node.operand(0), Site()).matrices.append((stored(node.operand(1)), fmt))
    return sites


def columns_record(cached: Graph) -> dict[str, list[int | None]]:
    """Returns how many columns each quantized linear layer of a cached graph keeps, by place."""
    chosen = cached.facts.outlier_columns
    nodes = [
        node
        for node in cached.find("quantized_linear")
        if node.operand(1).producer.op == "weight" and role_of(node) != LM_HEAD and rounds_inputs(node.attrs["format"])
    ]
    exprs = [(place_of(node, stored(node.operand(1))), stored(node.operand(1))) for node in nodes]
    return by_name({place: len(chosen.get(str(expr), [])) for place, expr in exprs})


class ChoosingWeights:
    """A `ProductSource` for the interpreter, which chooses the columns of a value when its first product comes."""

    def __init__(self, checkpoint: Checkpoint, sites: dict[Value, Site], take: Callable[[Site, list[int]], None]):
        self._checkpoint, self._sites, self._take = checkpoint, dict(sites), take
        self._streamed = StreamedWeights(checkpoint)
        self._panels = PackedPanels(checkpoint)

    @contextmanager
    def running(self) -> Iterator[ChoosingWeights]:
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
        """Returns the result of a node; before that it chooses the columns of its input, if nobody has."""
        site = self._sites.pop(node.operand(0), None)
        if site is not None:
            self._take(site, self._choose(site, x.reshape(-1, x.shape[-1]).float().numpy()))
        return self._streamed.product(node, x)

    def _choose(self, site: Site, x: np.ndarray) -> list[int]:
        k = x.shape[1]
        order = np.argsort(-np.square(x, dtype=np.float64).mean(axis=0), kind="stable")
        most = min(MOST_COLUMNS, k // LEAST_WIDTH)
        counts = [0, *(1 << i for i in range(most.bit_length()))]
        part = x[np.unique(np.linspace(0, len(x) - 1, min(SEARCH_TOKENS, len(x))).astype(int))]
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            errors = self._errors(site, part, [order[:count] for count in counts], pool)
        return sorted(order[: counts[best_count(errors, counts, k)]].tolist())

    def _errors(self, site: Site, x: np.ndarray, sets: list[np.ndarray], pool: ThreadPoolExecutor) -> np.ndarray:
        """Returns for each set of columns the products' squared errors, each over the squares of the exact product."""
        total = np.zeros(len(sets))
        for expr, fmt in site.matrices:
            inputs = [_rest(x, columns, fmt) for columns in sets]

            def squares(
                ends: tuple[int, int],
                expr: WeightExpr = expr, fmt: WeightFormat = fmt, inputs: list[Multiplier] = inputs,
            ) -> np.ndarray:  # fmt: skip
                w = self._streamed.rows(expr, *ends).numpy()
                exact = x @ w.T
                panels = self._panels.panels(expr, fmt, *ends)
                errors = [
                    rounded.product(panels, len(w)) + x[:, columns] @ w[:, columns].T - exact
                    for rounded, columns in zip(inputs, sets, strict=True)
                ]
                return np.array([float(np.square(each, dtype=np.float64).sum()) for each in (exact, *errors)])

            ranges = parts_of([expr.shape(self._checkpoint)[0]], x.shape[1])
            exact, *errors = np.sum(list(pool.map(squares, ranges)), axis=0)
            total += np.array(errors) / exact if exact > 0 else 0.0
        return total


def best_count(errors: np.ndarray, counts: list[int], k: int) -> int:
    """Returns the index of the best of `counts` columns of k, by the squared errors, those with none kept first."""
    prices = errors * 4.0 ** (16 * np.array(counts) / k)
    best = int(np.argmin(prices))
    return best if errors[best] * LEAST_GAIN <= errors[0] else 0


def _rest(x: np.ndarray, columns: np.ndarray, fmt: WeightFormat) -> Multiplier:
    """Returns x with zeros in some columns, in the form that kernels of a format read."""
    rest = np.array(x, np.float32)
    rest[:, columns] = 0
    return Multiplier(rest, fmt)
