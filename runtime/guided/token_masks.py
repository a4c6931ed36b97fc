"""Converts token masks, which have a bit for each token that may come next, from llguidance to the engine."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class TokenMasks:
    """Turns masks of the library into masks that the engine takes.

    eos: the model's end-of-sequence tokens. library_words: the length of the library's masks in 32-bit words. The
    library's vocabulary of library_size tokens may be larger than the model's vocab_size.
    """

    def __init__(self, vocab_size: int, library_size: int, eos: list[int]):
        self.eos = eos
        self.library_words = _words(library_size)
        self._known = _bits(_words(vocab_size), slice(0, vocab_size))
        self._no_ends = ~_bits(len(self._known), eos)

    def trim(self, row: NDArray[np.uint32], with_ends: bool) -> NDArray[np.uint32]:
        """Returns the engine's mask, uint32 [words of vocab_size], which has only the model's own tokens.

        row: the library's mask, uint32 [library_words]. with_ends: whether an end-of-sequence token may come.
        """
        mask = row[: len(self._known)] & self._known
        return mask if with_ends else mask & self._no_ends

    def only_token(self, mask: NDArray[np.uint32]) -> int | None:
        """Returns the one token that a mask of trim() allows, None if it allows none or several, or if the token is an
        end-of-sequence token, behind which nothing comes."""
        words = np.flatnonzero(mask)
        if len(words) != 1:
            return None
        word = int(mask[words[0]])
        if word & (word - 1):
            return None
        token = int(words[0]) * 32 + word.bit_length() - 1
        return None if token in self.eos else token


def _words(tokens: int) -> int:
    return (tokens + 31) // 32


def _bits(words: int, tokens: slice | list[int]) -> NDArray[np.uint32]:
    bits = np.zeros(words * 32, dtype=np.uint8)
    bits[tokens] = 1
    return np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32)
