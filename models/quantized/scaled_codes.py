"""Decodes matrices of small numbers with scales: w[n, k] = (codes[n, k] - zeros[n, g]) * scales[n, g], g = group of k.

The difference is exact. The product is rounded once, to the type of the decoded matrix. Every library that writes such
checkpoints decodes with the same two operations and the same rounding, in whatever order its tensors lie.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from tensorwright.models.dtypes import Ranges, Tensor, convert
from tensorwright.models.quantized.interface import Decoded

Span: TypeAlias = tuple[int, int]
"""A half-open interval."""

ReadPart: TypeAlias = Callable[[Span, Span], np.ndarray]
"""Takes rows and columns, and returns that part of a matrix."""


@dataclass(frozen=True)
class ScaledCodes(Decoded):
    """A matrix [N, K] of codes with scales, and zero points where there are any.

    codes: of rows and columns, whole numbers, or float32. scales: float32, of rows and groups. zeros: whole numbers, of
    rows and groups. group: the number of columns of a group. order: returns the group of every column, where
    neighbours need not be of one group; it is called when the matrix is read.
    """

    parts: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    codes: ReadPart
    scales: ReadPart
    zeros: ReadPart | None
    group: int
    order: Callable[[], np.ndarray] | None = None

    def read_part(self, ranges: Ranges) -> Tensor:
        rows, columns = ranges
        values = np.ascontiguousarray(self.codes(rows, columns)).astype(np.float32)
        spread = self._spread(columns)
        if self.zeros is not None:
            values -= spread(self.zeros, rows)
        values *= spread(self.scales, rows)
        return convert(Tensor("float32", values), self.dtype)

    def column_order(self) -> np.ndarray | None:
        """Returns the numbers of the columns in the order of their groups, and in ascending order inside a group."""
        if self.order is None:
            return None
        order = np.argsort(self.order(), kind="stable")
        return None if np.array_equal(order, np.arange(len(order))) else order

    def in_order(self, columns: np.ndarray) -> ScaledCodes:
        """Returns the matrix with its columns in another order. Its codes can be read in whole rows only."""
        width = len(columns)

        def codes(rows: Span, span: Span) -> np.ndarray:
            return self.codes(rows, (0, width))[:, columns[slice(*span)]]

        before = self.order
        groups = (lambda: before()[columns]) if before is not None else (lambda: columns // self.group)
        return replace(self, codes=codes, order=groups)

    def _spread(self, columns: Span) -> Callable[[ReadPart, Span], np.ndarray]:
        """Returns a function that reads scales or zero points of some rows, one for each of these columns."""
        if self.order is not None:
            groups = self.order()[slice(*columns)]
            first, last = (int(groups.min()), int(groups.max()) + 1) if groups.size else (0, 0)
            return lambda read, rows: read(rows, (first, last))[:, groups - first]
        first, last = columns[0] // self.group, -(-columns[1] // self.group)
        skip = columns[0] - first * self.group
        wanted = slice(skip, skip + columns[1] - columns[0])
        return lambda read, rows: np.repeat(read(rows, (first, last)), self.group, axis=1)[:, wanted]
