"""Computes the reference that an engine is measured against, and how far the output of each quantized product is from
that of the checkpoint's weights, on a text's real activations.

The cached graph runs in the reference interpreter. Every product is repeated with the unquantized weights, one part of
the matrix after the other, so memory stays small.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from tensorwright.builder.emit.quantization_record import Place, errors_by_name, place_of
from tensorwright.builder.emit.quantized_weights import RelativeError
from tensorwright.builder.measure.logit_blocks import logit_blocks
from tensorwright.builder.measure.reference import TransformersModel, reference_inputs
from tensorwright.builder.measure.streamed_weights import PanelSource, StreamedWeights
from tensorwright.builder.phases import Advance
from tensorwright.ir.graph import Graph, Node
from tensorwright.ir.interpret import Weights
from tensorwright.ir.walk import Walk
from tensorwright.ir.weights import WeightExpr
from tensorwright.models.checkpoint import Checkpoint

Blocks = Generator[np.ndarray, None, None]
OUTPUT_TOKENS = 32
"""The number of tokens of the text over which the errors of outputs are measured."""


class OutputErrors:
    """The errors of the products of a graph at stage "cached". StreamedWeights calls `add`."""

    def __init__(self) -> None:
        self._totals: dict[Place, RelativeError] = {}

    def add(self, node: Node, expr: WeightExpr, error: float, size: float) -> None:
        """Adds the sums of squares of a product's errors, and of the product with unquantized weights."""
        self._totals.setdefault(place_of(node, expr), RelativeError()).add(error, size)

    def record(self) -> dict[str, list[float | None]]:
        """Returns the root mean squared error over that of the output without bias, as in quantization_record.py."""
        return errors_by_name({place: total.value for place, total in self._totals.items()})


class Reference(Protocol):
    """What an engine is compared with."""

    def logits(self, ids: list[int], rows: int, told: Advance) -> Blocks:
        """Yields the logits of one sequence as float32 [up to `rows`, vocab]. told: gets how far the first block is."""

    def output_record(self) -> dict[str, Any]:
        """Returns the record of the outputs of quantized products: {} without such products."""


class StreamedReference:
    """The traced graph in float32, its weights streamed from the checkpoint.

    quantized: the graph at stage "cached" with the engine's quantized products, or None if it has none. Its first
    OUTPUT_TOKENS positions are computed beside those of the first sequence, so that a checkpoint larger than memory is
    read once for both.
    """

    def __init__(
        self, checkpoint: Checkpoint, traced: Graph, quantized: Graph | None, panels: PanelSource | None
    ) -> None:
        self._checkpoint, self._traced, self._quantized, self._panels = checkpoint, traced, quantized, panels
        self._errors = OutputErrors()
        self._weights = StreamedWeights(checkpoint, panels, self._errors.add)
        self._output_tokens = 0

    def __enter__(self) -> StreamedReference:
        self._weights.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._weights.__exit__(*error)

    def logits(self, ids: list[int], rows: int, told: Advance = lambda done, total: None) -> Blocks:
        beside = None
        if self._quantized is not None and self._output_tokens == 0:
            self._output_tokens = min(len(ids), OUTPUT_TOKENS)
            beside = outputs_walk(self._quantized, self._checkpoint, ids, self._weights, self._panels)
        graph, inputs = reference_inputs(self._traced, self._checkpoint, ids)
        yield from logit_blocks(graph, inputs, self._weights, rows, beside=beside, told=told)

    def output_record(self) -> dict[str, Any]:
        if self._quantized is None:
            return {}
        return {"output_tokens": self._output_tokens, "output_errors": self._errors.record()}


class TransformersReference:
    """The model in transformers. The outputs of quantized products are computed as StreamedReference does, alone."""

    def __init__(
        self,
        model: TransformersModel,
        checkpoint: Checkpoint,
        quantized: Graph | None,
        panels: PanelSource | None,
    ) -> None:
        self._model, self._checkpoint, self._quantized, self._panels = model, checkpoint, quantized, panels
        self._outputs: dict[str, Any] = {}

    def logits(self, ids: list[int], rows: int, told: Advance = lambda done, total: None) -> Blocks:
        if self._quantized is not None and not self._outputs:
            errors = output_errors(self._quantized, self._checkpoint, ids, self._panels)
            self._outputs = {"output_tokens": min(len(ids), OUTPUT_TOKENS), "output_errors": errors}
        logits = self._model.logits(ids)
        told(1, 1)
        for start in range(0, len(logits), rows):
            yield logits[start : start + rows]

    def output_record(self) -> dict[str, Any]:
        return self._outputs


@contextmanager
def open_reference(
    kind: str, checkpoint: Checkpoint, traced: Graph, quantized: Graph | None, panels: PanelSource | None
) -> Iterator[Reference]:
    """Gives the reference of kind "quick", the traced graph, or "full", the model in transformers.

    quantized: the graph whose products' outputs are recorded, or None. panels: its matrices, if they are packed.
    """
    if kind == "quick":
        with StreamedReference(checkpoint, traced, quantized, panels) as reference:
            yield reference
        return
    with TransformersModel(checkpoint.path, traced.facts.max_seq_len) as model:
        yield TransformersReference(model, checkpoint, quantized, panels)


def outputs_walk(
    cached: Graph, checkpoint: Checkpoint, ids: list[int], weights: Weights, panels: PanelSource | None
) -> Walk:
    """Runs the first OUTPUT_TOKENS of `ids`. The input of a product comes from the quantized products before it."""
    graph, inputs = reference_inputs(cached, checkpoint, ids[:OUTPUT_TOKENS], panels)
    return Walk(graph, inputs, weights)


def output_errors(
    cached: Graph, checkpoint: Checkpoint, ids: list[int], panels: PanelSource | None = None
) -> dict[str, list[float | None]]:
    """Runs the text and returns OutputErrors.record(). panels: the quantized matrices, if they are packed already."""
    errors = OutputErrors()
    with StreamedWeights(checkpoint, panels, errors.add) as weights:
        outputs_walk(cached, checkpoint, ids, weights, panels).finish()
    return errors.record()
