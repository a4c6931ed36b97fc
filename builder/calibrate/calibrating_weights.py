"""Multiplies like the engine that is to be, and chooses the codes of each matrix when the text first reaches it.

So the inputs of a product are what the calibrated layers before it made, rounded as the kernels round them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import torch

from tensorwright.builder.calibrate.chosen_codes import ChosenCodes, ChosenPanels
from tensorwright.builder.calibrate.gptq import Factor, choose_codes, factorise
from tensorwright.builder.calibrate.refine import refined
from tensorwright.builder.measure.streamed_weights import StreamedMatrices, StreamedWeights, parts_of, stored
from tensorwright.engine_format.calibrations import Calibration
from tensorwright.engine_format.weight_formats import WeightFormat
from tensorwright.errors import CheckpointError
from tensorwright.ir.graph import Node, Value
from tensorwright.ir.weights import WeightExpr
from tensorwright.models.read_weights import TensorSource
from tensorwright.plugins.quantized_matmul.quantize import (
    Quantized,
    dequantized,
    in_groups,
    quantize_activations,
    quantize_weights,
)
from tensorwright.plugins.quantized_matmul.sparsity import pruned

_ROUNDED_ROWS = 1024
"""Rows of inputs that are rounded and multiplied at a time."""
_MOMENT_COLUMNS = 512
"""Columns of H = X^T X that one thread computes at a time, so that its bits do not depend on the number of threads."""


class CalibratingWeights:
    """A `ProductSource` for the interpreter, which puts the codes of the products of `nodes` into `codes`.

    last: the node whose result nobody reads. advance: called after each matrix.
    """

    def __init__(
        self,
        source: TensorSource,
        codes: ChosenCodes,
        nodes: list[Node],
        calibration: Calibration,
        advance: Callable[[], None] = lambda: None,
    ):
        self._source, self._codes, self._calibration, self._advance = source, codes, calibration, advance
        self._waiting = {(stored(node.operand(1)), node.attrs["format"]) for node in nodes}
        self._last = nodes[-1]
        self._streamed = StreamedWeights(source, ChosenPanels(codes, source))

    @contextmanager
    def running(self) -> Iterator[CalibratingWeights]:
        """Gives this object, with its threads."""
        with self._streamed:
            yield self

    def __call__(self, expr: WeightExpr) -> torch.Tensor:
        """Returns the whole weight."""
        return self._streamed(expr)

    def matrices(self, node: Node, operand: Value) -> StreamedMatrices:
        """Returns the matrices of a mixture of experts, which are rounded to nearest."""
        return self._streamed.matrices(node, operand)

    def product(self, node: Node, x: torch.Tensor) -> torch.Tensor:
        """Returns the result of a node; before that it chooses the codes of its matrix, if nobody has."""
        if node.op == "quantized_linear":
            key = stored(node.operand(1)), node.attrs["format"]
            if key in self._waiting:
                self._waiting.remove(key)
                self._calibrate(*key, x.reshape(-1, x.shape[-1]).float().numpy())
                self._advance()
        if node is self._last:  # Logits of all tokens would be the largest value by far.
            return torch.zeros(1).expand(*x.shape[:-1], int(node.output.shape[-1]))
        return self._streamed.product(node, x)

    def _calibrate(self, expr: WeightExpr, fmt: WeightFormat, x: np.ndarray) -> None:
        rows, k = expr.shape(self._source)
        choose_rows = chooser(x, fmt, self._calibration)
        self._codes.reserve(expr, fmt, rows, k)

        def choose(part: tuple[int, int]) -> None:
            start, end = part
            self._codes.write(expr, fmt, start, choose_rows(self._streamed.rows(expr, start, end).numpy()))

        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            list(pool.map(choose, parts_of([rows], k)))


def chooser(x: np.ndarray, fmt: WeightFormat, calibration: Calibration) -> Callable[[np.ndarray], Quantized]:
    """Returns what quantizes rows of a matrix, float32 [R, K], whose product has the inputs x, float32 [T, K]."""
    norms = input_norms(x) if fmt.sparse else None
    if not calibration.codes:
        return lambda w: quantize_weights(pruned(_finite(w), norms), fmt)
    factor = factorise(second_moments(x, fmt), fmt)
    return lambda w: choose_quantized(w, fmt, factor, None if norms is None else pruned(_finite(w), norms) != 0)


def _finite(w: np.ndarray) -> np.ndarray:
    """Returns w. Raises CheckpointError if a weight is infinite or NaN."""
    if not np.isfinite(w).all():
        raise CheckpointError("a weight is infinite or not a number, so it cannot be told which weights to keep")
    return w


def input_norms(x: np.ndarray) -> np.ndarray:
    """Returns the Euclidean norm of each column of x, float32 [T, K]: float32 [K]."""
    return np.sqrt(np.einsum("tk,tk->k", x, x, dtype=np.float64)).astype(np.float32)


def choose_quantized(w: np.ndarray, fmt: WeightFormat, factor: Factor, kept: np.ndarray | None = None) -> Quantized:
    """Returns scales, zero points and codes for weights w, float32 [R, K], by the inputs of `factor`.

    kept: bool [R, K], False for the weights whose codes must be 0; None means that there are no such weights.
    """
    chosen = choose_codes(w, fmt, factor, kept)
    better = refined(w, chosen, fmt, factor.moments, kept)
    values = in_groups(better.codes.astype(np.float32), fmt).astype(fmt.values_dtype)
    return Quantized(values, better.scales, None if better.zeros is None else better.zeros.astype(np.uint8))


def second_moments(x: np.ndarray, fmt: WeightFormat) -> np.ndarray:
    """Returns X^T X, float64 [K, K], for inputs x [T, K] as the kernels of `fmt` round them."""
    k = x.shape[1]
    total = np.zeros((k, k))
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for start in range(0, len(x), _ROUNDED_ROWS):
            rows = x[start : start + _ROUNDED_ROWS]
            if not fmt.keeps_activations:
                rows = np.ascontiguousarray(dequantized(quantize_activations(rows, fmt), k))

            def part(first: int, rows: np.ndarray = rows) -> None:
                total[first : first + _MOMENT_COLUMNS] += rows[:, first : first + _MOMENT_COLUMNS].T @ rows

            list(pool.map(part, range(0, k, _MOMENT_COLUMNS)))
    return total
