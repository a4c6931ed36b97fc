"""How far each quantized matmul's output is from that of the checkpoint's weights, on a text's real activations.

The cached graph runs in the reference interpreter; every product is repeated with the weights as they are, part by part
of the matrix, so memory stays small.
"""

from __future__ import annotations

from tensorwright.builder.accuracy import OUTPUT_TOKENS
from tensorwright.builder.accuracy_reference import reference_walk
from tensorwright.builder.emit.quantized_weights import RelativeError
from tensorwright.builder.quantization_record import Place, by_name, place_of
from tensorwright.builder.streamed_weights import PanelSource, StreamedWeights
from tensorwright.ir.graph import Graph, Node
from tensorwright.ir.interpret import Weights
from tensorwright.ir.walk import Walk
from tensorwright.models.checkpoint import Checkpoint


class OutputErrors:
    """What the products of a graph at stage "cached" lose; `add` is for StreamedWeights."""

    def __init__(self) -> None:
        self._totals: dict[Place, RelativeError] = {}

    def add(self, node: Node, error: float, size: float) -> None:
        """Sums of squares: of a product's error, and of the product with the weights as they are."""
        self._totals.setdefault(place_of(node), RelativeError()).add(error, size)

    def record(self) -> dict[str, list[float | None]]:
        """Root of the mean squared error over that of the output (bias left out), as quantization_record.py has it."""
        return by_name({place: total.value for place, total in self._totals.items()})


def outputs_walk(cached: Graph, checkpoint: Checkpoint, ids: list[int], weights: Weights) -> Walk:
    """A run over the first OUTPUT_TOKENS of `ids`. What reaches a matmul has passed the quantized ones before it."""
    return reference_walk(cached, checkpoint, ids[:OUTPUT_TOKENS], weights)


def output_errors(
    cached: Graph, checkpoint: Checkpoint, ids: list[int], panels: PanelSource | None = None
) -> dict[str, list[float | None]]:
    """OutputErrors.record() of such a run. panels: of the quantized matrices, where they are packed already."""
    errors = OutputErrors()
    with StreamedWeights(checkpoint, panels, errors.add) as weights:
        outputs_walk(cached, checkpoint, ids, weights).finish()
    return errors.record()
