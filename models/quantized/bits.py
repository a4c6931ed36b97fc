"""Unpacks numbers of 1 to 8 bits from words of 32 bits."""

from __future__ import annotations

import numpy as np

BLOCK = 32
"""So many numbers of b bits fill b words."""


def words_of(count: int, bits: int) -> int:
    """Returns the words that `count` numbers take."""
    return -(-count * bits // 32)


def unpack_bits(words: np.ndarray, bits: int, start: int, end: int) -> np.ndarray:
    """Returns numbers [start, end) of every row of words [..., W] as uint8 [..., end - start].

    Number i of a row begins at its bit i * bits, counted from the lowest bit of the first word.
    """
    first, last = start // BLOCK, -(-end // BLOCK)
    taken = np.ascontiguousarray(words[..., first * bits : last * bits]).view(np.uint32)
    missing = (last - first) * bits - taken.shape[-1]
    if missing:  # The last block may end within its words.
        taken = np.concatenate([taken, np.zeros((*taken.shape[:-1], missing), np.uint32)], axis=-1)
    numbers = _from_bytes(taken.view(np.uint8), bits) if 8 % bits == 0 else _from_blocks(taken, bits)
    return numbers[..., start - first * BLOCK : end - first * BLOCK]


def _from_bytes(data: np.ndarray, bits: int) -> np.ndarray:
    """Unpacks numbers of which a byte holds several whole ones."""
    each = 8 // bits
    numbers = np.empty((*data.shape, each), np.uint8)
    for i in range(each):
        np.bitwise_and(data >> (bits * i), (1 << bits) - 1, out=numbers[..., i])
    return numbers.reshape(*data.shape[:-1], -1)


def _from_blocks(words: np.ndarray, bits: int) -> np.ndarray:
    """Unpacks numbers that may lie across two words."""
    blocks = words.reshape(*words.shape[:-1], -1, bits).astype(np.uint64)
    numbers = np.empty((*blocks.shape[:-1], BLOCK), np.uint8)
    for i in range(BLOCK):
        word, shift = divmod(i * bits, 32)
        value = blocks[..., word] >> np.uint64(shift)
        if shift + bits > 32:
            value = value | blocks[..., word + 1] << np.uint64(32 - shift)
        numbers[..., i] = value & np.uint64((1 << bits) - 1)
    return numbers.reshape(*words.shape[:-1], -1)
