"""Rounds to E2M1: floats of 2 bits of exponent and 1 of mantissa, +-{0, 0.5, 1, 1.5, 2, 3, 4, 6}, without infinities.

Groups of 32 share a power of two, as the OCP Microscaling Formats specification has it. Twice an E2M1 number is a whole
number, so numbers are held doubled here, and scales halved.
"""

from __future__ import annotations

import numpy as np

E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
"""The doubled number of each of the 16 codes."""
_CODES = np.zeros(256, np.uint8)
"""The code of each doubled number, by its byte. Of the two codes of zero it is the first."""
_CODES[E2M1.view(np.uint8)[::-1]] = np.arange(16, dtype=np.uint8)[::-1]
_POWERS = (np.float32(1), np.float32(2))


def doubled_scales(largest: np.ndarray) -> list[np.ndarray]:
    """Returns the scales of doubled numbers to choose from, in order, for groups of the largest magnitudes given.

    The first is half of 2^(floor(log2 largest) - 2), the specification's choice.
    """
    power_below = (np.ascontiguousarray(largest).view(np.uint32) & 0x7F800000).view(np.float32)
    return [power_below / np.float32(8) * t for t in _POWERS]


def round_to_e2m1(doubled: np.ndarray) -> np.ndarray:
    """Returns the nearest doubled numbers as int8, ties to even codes. What is larger than 12 becomes 12."""
    size = np.minimum(np.abs(doubled), np.float32(12))
    step = np.where(size < 4, np.float32(1), np.where(size < 8, np.float32(2), np.float32(4)))
    return np.copysign(np.rint(size / step) * step, doubled).astype(np.int8)


def codes_of(doubled: np.ndarray) -> np.ndarray:
    """Returns the codes of doubled numbers, int8, as uint8. Zero has the code 0."""
    return _CODES[doubled.view(np.uint8)]
