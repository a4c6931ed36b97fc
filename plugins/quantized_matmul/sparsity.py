"""Defines 2:4 sparsity in numpy: of each 4 neighbours along K two are kept. The C++ must give the same bits.

Which two: those with the largest magnitudes, or those with the largest magnitudes times the norm of the input that they
multiply (Wanda, Sun et al. 2023, https://arxiv.org/abs/2306.11695). Of equal ones the first is kept.
"""

from __future__ import annotations

import numpy as np

QUAD = 4
"""Neighbours along K."""
KEPT = 2
"""How many of them are kept."""


def density(k: int) -> float:
    """Returns the part of `k` weights that is kept."""
    return (k // QUAD * KEPT + min(KEPT, k % QUAD)) / k


def pruned(w: np.ndarray, norms: np.ndarray | None = None) -> np.ndarray:
    """Returns a copy of float32 [rows, k] with 0 for weights that are not kept.

    norms: [k], the norms of the inputs; None means that they are equal. A last run of fewer than 4 neighbours keeps two
    too.
    """
    rows, k = w.shape
    scores = np.full((rows, -(-k // QUAD) * QUAD), -1, np.float32)  # Columns past k are never kept before others.
    scores[:, :k] = np.abs(w) if norms is None else np.abs(w) * norms.astype(np.float32)
    order = np.argsort(-scores.reshape(rows, -1, QUAD), axis=-1, kind="stable")
    keep = np.zeros(order.shape, bool)
    np.put_along_axis(keep, order[..., :KEPT], True, axis=-1)
    return np.where(keep.reshape(rows, -1)[:, :k], w, np.float32(0))


def compressed(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the kept values [..., k / 2] of [..., k], of which at most two of each 4 are not 0, and their places,
    from 0 to 3 within the 4: uint8 [..., k / 2].

    Where fewer than two are not 0, the first zeros are kept. Raises ValueError where more are not 0.
    """
    quads = values.reshape(*values.shape[:-1], -1, QUAD)
    if (np.count_nonzero(quads, axis=-1) > KEPT).any():
        raise ValueError(f"of {QUAD} neighbours more than {KEPT} are not 0")
    places = np.sort(np.argsort(quads == 0, axis=-1, kind="stable")[..., :KEPT], axis=-1)
    kept = np.take_along_axis(quads, places, axis=-1)
    return kept.reshape(*values.shape[:-1], -1), places.reshape(*values.shape[:-1], -1).astype(np.uint8)


def expanded(kept: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Inverts `compressed`."""
    shape = *kept.shape[:-1], kept.shape[-1] // KEPT
    quads = np.zeros((*shape, QUAD), kept.dtype)
    np.put_along_axis(quads, places.reshape(*shape, KEPT).astype(np.intp), kept.reshape(*shape, KEPT), axis=-1)
    return quads.reshape(*kept.shape[:-1], -1)
