"""Chooses the codes of a matrix one column after the other, each making up for the errors of those before it.

GPTQ (Frantar et al. 2023, https://arxiv.org/abs/2210.17323), with its "act-order": the columns with the largest inputs
come first, and a group's scale is chosen before the first of its columns. R rows, K columns.

For e = w - scale * code, a row's squared error over all inputs X [T, K] is e H e^T with H = X^T X. With H = U U^T and
U upper triangular that is the sum over j of (sum over i <= j of U[i, j] e[i])^2. So the codes are chosen in ascending
order of j: column j alone decides term j, given the errors before it. Its best value is
w[j] + (sum over i < j of U[i, j] e[i]) / U[j, j], rounded. That is GPTQ's choice, without the inverse of H.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tensorwright.engine_format.weight_formats import WeightFormat
from tensorwright.errors import CheckpointError

DAMPING = 0.01
"""The part of the mean of H's diagonal that is added to the diagonal, so that H has an inverse (the paper's number)."""
_BLOCK = 128
"""Columns between two products with all errors so far. Within a block, errors are added column by column."""


@dataclass(frozen=True)
class Factor:
    """H of the inputs of one product, ready for any number of rows of its matrix.

    order: [K], the columns in the order in which their codes are chosen. upper: float64 [K, K], upper triangular, in
    that order, every column divided by its element on the diagonal.
    """

    order: np.ndarray
    upper: np.ndarray


def factorise(moments: np.ndarray) -> Factor:
    """Returns the factor of H = X^T X, float64 [K, K]. A column whose inputs are all 0 is rounded to nearest.

    Raises CheckpointError if H is not finite.
    """
    diagonal = np.diagonal(moments)
    if not np.isfinite(diagonal).all():
        raise CheckpointError(
            "the inputs of a product are infinite or not a number, so its weights cannot be calibrated"
        )
    added = DAMPING * diagonal.mean()
    order = np.argsort(-diagonal, kind="stable")
    lower = moments[np.ix_(order[::-1], order[::-1])]  # Its Cholesky factor, turned round again, is upper triangular.
    lower[np.diag_indices(len(order))] += added if added > 0 else 1.0  # Inputs that are all 0 say nothing.
    lower = np.linalg.cholesky(lower)
    lower /= np.diagonal(lower).copy()
    return Factor(order, lower[::-1, ::-1])


def choose_codes(w: np.ndarray, scales: np.ndarray, fmt: WeightFormat, factor: Factor) -> np.ndarray:
    """Returns int8 [R, K] for weights w [R, K] and the scales [R, groups] of their groups."""
    order, upper = factor.order, factor.upper
    size = fmt.stored_group(w.shape[1])
    scale = np.ascontiguousarray(scales.T, np.float64)  # [groups, R]
    inverse = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale != 0)
    target = np.ascontiguousarray(w.T, np.float64)[order]  # [K, R]
    errors = np.empty_like(target)
    codes = np.empty(target.shape, np.int8)
    for begin in range(0, len(order), _BLOCK):
        end = min(begin + _BLOCK, len(order))
        carried = upper[:begin, begin:end].T @ errors[:begin]
        for j in range(begin, end):
            group = order[j] // size
            wanted = target[j] + carried[j - begin] + upper[begin:j, j] @ errors[begin:j]
            code = np.clip(np.rint(wanted * inverse[group]), fmt.least, fmt.largest)
            codes[order[j]] = code
            errors[j] = target[j] - code * scale[group]
    return np.ascontiguousarray(codes.T)
