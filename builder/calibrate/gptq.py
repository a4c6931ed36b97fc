"""Chooses scales and codes of a matrix one group after the other, each making up for the errors of those before it.

GPTQ (Frantar et al. 2023, https://arxiv.org/abs/2210.17323), with the groups of the largest inputs first, and in a
group the columns of the largest inputs first: the paper's "act-order", but the columns of a group stay together. A
group's scales are chosen when its turn comes, for the weights with what the groups before have carried to them. R rows,
K columns.

For e = w - scale * code, a row's squared error over all inputs X [T, K] is e H e^T with H = X^T X. With H = U U^T and
U upper triangular that is the sum over j of (sum over i <= j of U[i, j] e[i])^2. So the codes are chosen in ascending
order of j: column j alone decides term j, given the errors before it. Its best value is
w[j] + (sum over i < j of U[i, j] e[i]) / U[j, j], rounded. That is GPTQ's choice, without the inverse of H. What
rounding it costs is its squared error times U[j, j]^2, by which a group's scales are chosen.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tensorwright.builder.calibrate.group_scales import choose_scales
from tensorwright.engine_format.weight_formats import WeightFormat
from tensorwright.errors import CheckpointError

DAMPING = 0.01
"""The part of the mean of H's diagonal that is added to the diagonal, so that H has an inverse (the paper's number)."""
_BLOCK = 128
"""The most columns between two products with all errors so far. Within a block, errors are added column by column."""


@dataclass(frozen=True)
class Factor:
    """H of the inputs of one product, ready for any number of rows of its matrix.

    order: [K], the columns in the order in which their codes are chosen. upper: float64 [K, K], upper triangular, in
    that order, every column divided by its element on the diagonal. importance: float64 [K], the squares of these
    elements. moments: H itself, float64 [K, K], with what was added to its diagonal, its columns in their places.
    """

    order: np.ndarray
    upper: np.ndarray
    importance: np.ndarray
    moments: np.ndarray


@dataclass(frozen=True)
class ChosenRows:
    """codes: [R, K], whole numbers less the zero points. scales: float32 [R, groups].

    zeros: the zero points, float32 [R, groups], of a format that has them.
    """

    codes: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray | None


def factorise(moments: np.ndarray, fmt: WeightFormat) -> Factor:
    """Returns the factor of H = X^T X, float64 [K, K]. A column whose inputs are all 0 is rounded to nearest.

    Raises CheckpointError if H is not finite.
    """
    diagonal = np.diagonal(moments)
    if not np.isfinite(diagonal).all():
        raise CheckpointError(
            "the inputs of a product are infinite or not a number, so its weights cannot be calibrated"
        )
    added = DAMPING * diagonal.mean()
    order = _order(diagonal, fmt.stored_group(len(diagonal)))
    damped = moments.copy()
    damped[np.diag_indices(len(order))] += added if added > 0 else 1.0  # Inputs that are all 0 say nothing.
    # The Cholesky factor of H turned round, turned round again, is upper triangular.
    lower = np.linalg.cholesky(damped[np.ix_(order[::-1], order[::-1])])
    scale = np.diagonal(lower).copy()
    lower /= scale
    return Factor(order, lower[::-1, ::-1], np.square(scale[::-1]), damped)


def _order(diagonal: np.ndarray, size: int) -> np.ndarray:
    """Returns the columns by the mean of the diagonal over their group of `size`, then by the diagonal, descending."""
    group = np.arange(len(diagonal)) // size
    mean = np.bincount(group, diagonal) / np.bincount(group)
    return np.lexsort((-diagonal, group, -mean[group]))


def choose_codes(w: np.ndarray, fmt: WeightFormat, factor: Factor, kept: np.ndarray | None = None) -> ChosenRows:
    """Returns the codes of weights w, float32 [R, K], for a format of whole numbers.

    kept: bool [R, K], False for the weights whose codes must be 0, for whose loss the others make up (SparseGPT,
    Frantar and Alistarh 2023, https://arxiv.org/abs/2301.00774); None means that there are no such weights.
    """
    rows, k = w.shape
    free = np.ones(w.shape, bool) if kept is None else kept
    free = np.ascontiguousarray(free.T[factor.order])
    size = fmt.stored_group(k)
    target = np.ascontiguousarray(w.T, np.float64)[factor.order]  # [K, R]
    errors, codes = np.empty_like(target), np.empty_like(target)
    scales, zeros = np.zeros((2, fmt.groups(k), rows), np.float32)
    begin = 0
    while begin < k:
        group = factor.order[begin] // size
        end = begin + min(size, k - group * size)
        wanted = target[begin:end] + factor.upper[:begin, begin:end].T @ errors[:begin]
        ours = np.ascontiguousarray((wanted * free[begin:end]).T, np.float32)
        chosen = choose_scales(ours, fmt, factor.importance[begin:end])
        scales[group], zeros[group] = chosen
        part = slice(begin, end)
        _round_group(wanted, target[part], free[part], errors[part], codes[part], factor.upper[part, part], chosen, fmt)
        begin = end
    in_place = np.empty_like(codes)
    in_place[factor.order] = codes
    return ChosenRows(in_place.T, scales.T, zeros.T if fmt.has_zeros else None)


def _round_group(
    wanted: np.ndarray, target: np.ndarray, free: np.ndarray, errors: np.ndarray, codes: np.ndarray,
    upper: np.ndarray, chosen: tuple[np.ndarray, np.ndarray], fmt: WeightFormat,
) -> None:  # fmt: skip
    """Fills errors and codes, [S, R], of the S columns of a group. wanted: [S, R], the weights `target` with what other
    groups have carried to them. free: False where the code must be 0. chosen: scales and zero points, [R]."""
    scale, zero = (each.astype(np.float64) for each in chosen)
    inverse = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale != 0)
    low, high = fmt.least - zero, fmt.largest - zero
    for begin in range(0, len(wanted), _BLOCK):
        end = min(begin + _BLOCK, len(wanted))
        carried = upper[:begin, begin:end].T @ errors[:begin]
        for j in range(begin, end):
            best = wanted[j] + carried[j - begin] + upper[begin:j, j] @ errors[begin:j]
            codes[j] = np.clip(np.rint(best * inverse), low, high) * free[j]
            errors[j] = target[j] - codes[j] * scale
