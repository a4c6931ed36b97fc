"""Chooses the formats of `mixed`: measures what each format costs each matrix, and divides the budget by that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorwright.builder.calibrate.choose_formats import Budget, Matrix, chosen_spec, divide, open_budget
from tensorwright.builder.calibrate.sample import Sample
from tensorwright.builder.calibrate.sensitivity import Sensitivity
from tensorwright.builder.emit.quantization_record import errors_by_name, place_of, stored_matrices
from tensorwright.builder.measure.accuracy import block_rows, multiply_adds
from tensorwright.builder.measure.sample import quick_tokens
from tensorwright.builder.phases import Advance
from tensorwright.engine_format.weight_formats import QuantizeSpec, WeightFormat
from tensorwright.ir.graph import Graph
from tensorwright.models.checkpoint import Checkpoint
from tensorwright.passes.quantize_weights import quantizable, weights_of

MAX_LENGTH = 128
"""The longest sequence that is measured."""
MAX_LOGIT_BYTES = 256 << 20
"""The most bytes of the unrounded model's logits, which are kept while formats are measured."""


def choose_mixed(
    cached: Graph, checkpoint: Checkpoint, spec: QuantizeSpec, formats: Sequence[WeightFormat], sample: Sample,
    advance: Advance,
) -> tuple[QuantizeSpec, dict[str, Any]]:  # fmt: skip
    """Returns the spec with a format for every matrix that it leaves to its budget, and the record of the choice.

    cached: a graph at stage "cached" whose matrices are not quantized. formats: those that a matrix may have. Raises
    InvalidOptionError for a budget that is too small.
    """
    budget = open_budget(cached, spec, formats)
    sequences = spread_sequences(sample.sequences, token_count(cached))
    sensitivity = Sensitivity(cached, checkpoint, sequences, block_rows(cached.facts.vocab_size))
    probes = {matrix: [nearest_format(matrix, budget)] for matrix in budget.matrices}
    costs = sensitivity.measure(budget.matrices, probes, advance)
    chosen = divide(budget, lambda matrix, fmt: costs[matrix].cost(fmt))
    names = [name for node in quantizable(cached) for name in weights_of(node)]
    prices = {matrix: 0.0 if fmt is None else costs[matrix].cost(fmt) for matrix, fmt in chosen.items()}
    owner = {name: matrix for matrix in budget.matrices for name in matrix.names}
    by_place = {
        place_of(node, expr): prices[owner[name]]
        for node in quantizable(cached)
        for _, expr in stored_matrices(node)
        for name in list(expr.refs())[:1]
        if name in owner
    }
    record = {
        "method": "mixed",
        "text": sample.text,
        "tokens": sum(map(len, sequences)),
        "divergences": errors_by_name(by_place),
    }
    return chosen_spec(spec, chosen, names), record


def nearest_format(matrix: Matrix, budget: Budget) -> WeightFormat:
    """Returns the format of a matrix whose divergence is measured: the one whose size is nearest to the budget's."""
    mean = budget.bytes / max(1, sum(each.weights for each in budget.matrices))
    return min(matrix.candidates, key=lambda fmt: abs(matrix.bytes(fmt, budget.dtype) / matrix.weights - mean))


def token_count(cached: Graph) -> int:
    """Returns the most tokens of the text that are measured, by the size of the model."""
    kept = MAX_LOGIT_BYTES // (4 * cached.facts.vocab_size)
    return min(quick_tokens(multiply_adds(cached)), kept)


def spread_sequences(sequences: Sequence[list[int]], count: int) -> list[list[int]]:
    """Returns at most `count` tokens: the beginnings of sequences that lie evenly over the text."""
    wanted = max(1, min(len(sequences), -(-count // MAX_LENGTH)))
    length = min(MAX_LENGTH, count // wanted)
    places = [number * len(sequences) // wanted for number in range(wanted)]
    return [sequences[place][:length] for place in places]
