"""Computes the reference that an engine is measured against, and how far the output of each quantized product is from
that of the checkpoint's weights, on a text's real activations.

The cached graph runs in the reference interpreter. Every product is repeated with the unquantized weights, one part of
the matrix after the other, so memory stays small.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorwright.builder.emit.quantization_record import Place, by_name, place_of
from tensorwright.builder.emit.quantized_weights import RelativeError
from tensorwright.builder.measure.reference import as_rows, reference_walk, transformers_logits
from tensorwright.builder.measure.streamed_weights import PanelSource, StreamedWeights
from tensorwright.ir.graph import Graph, Node
from tensorwright.ir.interpret import Weights
from tensorwright.ir.walk import Walk, in_step
from tensorwright.ir.weights import WeightExpr
from tensorwright.models.checkpoint import Checkpoint

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
        return by_name({place: total.value for place, total in self._totals.items()})


def outputs_walk(cached: Graph, checkpoint: Checkpoint, ids: list[int], weights: Weights) -> Walk:
    """Runs the first OUTPUT_TOKENS of `ids`. The input of a product comes from the quantized products before it."""
    return reference_walk(cached, checkpoint, ids[:OUTPUT_TOKENS], weights)


def output_errors(
    cached: Graph, checkpoint: Checkpoint, ids: list[int], panels: PanelSource | None = None
) -> dict[str, list[float | None]]:
    """Runs the text and returns OutputErrors.record(). panels: the quantized matrices, if they are packed already."""
    errors = OutputErrors()
    with StreamedWeights(checkpoint, panels, errors.add) as weights:
        outputs_walk(cached, checkpoint, ids, weights).finish()
    return errors.record()


def compute_reference(
    kind: str,
    checkpoint: Checkpoint,
    ids: list[int],
    traced: Graph,
    quantized: Graph | None,
    panels: PanelSource | None,
) -> tuple[np.ndarray, dict[str, Any]]:
    """Returns the logits to compare with, float32 [len(ids), vocab], and the record of the outputs of `quantized`.

    Without `quantized` that record is empty. For kind "quick" both are computed side by side, so that a
    checkpoint larger than memory is read once.
    """
    if kind == "full":
        logits = transformers_logits(checkpoint.path, ids, traced.facts.max_seq_len)
        found = None if quantized is None else output_errors(quantized, checkpoint, ids, panels)
    else:
        errors = OutputErrors()
        with StreamedWeights(checkpoint, panels, errors.add) as weights:
            walk = reference_walk(traced, checkpoint, ids, weights)
            if quantized is not None:
                in_step(walk, outputs_walk(quantized, checkpoint, ids, weights))
            (result,) = walk.finish()
        logits = as_rows(result)
        found = None if quantized is None else errors.record()
    if found is None:
        return logits, {}
    return logits, {"output_tokens": min(len(ids), OUTPUT_TOKENS), "output_errors": found}
