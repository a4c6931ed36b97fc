"""Defines the packed weight layout, in numpy. Tests compare the C++ packer with it.

Rows come in panels of 16, the last one padded with zeros. Inside a panel the reduction dimension K is cut into groups
of 4 bytes (1 float32 or 2 bfloat16; K padded with zeros) and group 0 of all 16 rows comes first, then group 1:
[panels, groups of K, 16 rows, 4 bytes]. bfloat16 elements are uint16 bit patterns.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorwright.engine_format.weight_formats import LANES

GROUP_BYTES = 4
_STORAGE: dict[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "bfloat16": np.dtype("<u2")}


def panels_of(rows: int) -> int:
    """Returns how many panels hold `rows` rows."""
    return -(-rows // LANES)


def panel_bytes(dtype: str, k: int) -> int:
    """Returns the bytes of one panel of K columns."""
    per_group = GROUP_BYTES // _STORAGE[dtype].itemsize
    return -(-k // per_group) * GROUP_BYTES * LANES


def pack_panels(matrix: np.ndarray, dtype: str) -> np.ndarray:
    """Packs [n, k] in the element type's storage into uint8 [panels of n, panel_bytes(dtype, k)]."""
    if matrix.ndim != 2 or matrix.dtype != _STORAGE[dtype]:
        raise TypeError(f"pack_panels needs [n, k] {_STORAGE[dtype]} for {dtype}, got {matrix.shape} {matrix.dtype}")
    n, k = matrix.shape
    panels, groups = panels_of(n), panel_bytes(dtype, k) // (GROUP_BYTES * LANES)
    columns = groups * GROUP_BYTES // _STORAGE[dtype].itemsize
    if (panels * LANES, columns) != (n, k) or not matrix.flags.c_contiguous:
        padded = np.zeros((panels * LANES, columns), _STORAGE[dtype])
        padded[:n, :k] = matrix
        matrix = padded
    # A 4-byte group moves as one unit, whatever its element type.
    units = matrix.view(np.uint32).reshape(panels, LANES, groups)
    return np.ascontiguousarray(units.transpose(0, 2, 1)).view(np.uint8).reshape(panels, -1)


def unpack_panels(packed: np.ndarray, dtype: str, n: int, k: int) -> np.ndarray:
    """Inverts pack_panels: uint8 panels, in any shape -> [n, k]."""
    panels = panels_of(n)
    units = np.ascontiguousarray(packed).reshape(panels, -1).view(np.uint32).reshape(panels, -1, LANES)
    rows = np.ascontiguousarray(units.transpose(0, 2, 1)).view(_STORAGE[dtype])
    return rows.reshape(panels * LANES, -1)[:n, :k]
