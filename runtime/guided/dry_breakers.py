"""Finds how the sequence breakers of DRY are spelled by an engine's tokens, as llama.cpp finds them.

A breaker is a text. A token that holds the whole text is a breaker by itself. A token that ends with the text's
beginning, its head, is one together with the tokens of the rest, its tail.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorwright.runtime.base.once import kept_with, once
from tensorwright.runtime.engine import native
from tensorwright.runtime.guided.spelling import token_bytes
from tensorwright.runtime.text.tokenizer import Tokenizer

KEPT = 16
"""The lists of breakers whose spellings are kept for each tokenizer."""

Spelling = tuple[list[int], list[int]]
"""The tokens of a tail, none for a whole breaker, and the heads that it has."""


class DryBreakers:
    """The spellings of one list of breakers. Requests with the same list share the object."""

    def __init__(self, spellings: list[Spelling]):
        self.spellings = spellings

    @once
    def native(self) -> Any:
        """The `_runtime.DryBreakers`."""
        return native.load_module().DryBreakers(self.spellings)


class _TokenTexts:
    """The texts of a tokenizer's tokens as bytes, for searches in all of them at once."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        size = tokenizer.vocab_size
        try:
            lengths, joined = token_bytes(tokenizer.library, size)
        except ValueError:  # such a tokenizer has no bytes for its tokens, but each has a text
            texts = [tokenizer.token_text(token).encode("utf-8", "replace") for token in range(size)]
            lengths, joined = np.array([len(text) for text in texts], np.uint32), bytearray(b"".join(texts))
        self._bytes = np.frombuffer(bytes(joined), np.uint8)
        self._ends = np.cumsum(lengths, dtype=np.int64)
        self._lengths = lengths.astype(np.int64)
        spelled = np.flatnonzero(self._lengths)
        last = self._bytes[self._ends[spelled] - 1]
        self._by_last = {byte: spelled[last == byte] for byte in np.unique(last).tolist()}
        self.spell = lru_cache(KEPT)(self._spell)

    def _spell(self, breakers: tuple[str, ...]) -> DryBreakers:
        heads: dict[tuple[int, ...], set[int]] = {}
        for breaker in breakers:
            text = breaker.encode()
            whole = self._holding(text)
            heads.setdefault((), set()).update(whole)
            for length in range(1, len(text)):
                ending = self._ending_with(text[:length])
                ending.difference_update(whole)
                rest = text[length:]
                if not ending or rest[0] & 0xC0 == 0x80:  # no text begins in the middle of a character
                    continue
                tail = tuple(self._tokenizer.encode(rest.decode(), add_special_tokens=False))
                if tail:
                    heads.setdefault(tail, set()).update(ending)
        return DryBreakers([(list(tail), sorted(tokens)) for tail, tokens in heads.items() if tokens])

    def _holding(self, text: bytes) -> set[int]:
        """Returns the tokens in which the text occurs."""
        starts = np.arange(max(0, len(self._bytes) - len(text) + 1))
        for offset, byte in enumerate(text):
            starts = starts[self._bytes[starts + offset] == byte]
        tokens = np.searchsorted(self._ends, starts, side="right")
        return set(tokens[starts + len(text) <= self._ends[tokens]].tolist())

    def _ending_with(self, text: bytes) -> set[int]:
        """Returns the tokens that end with the text."""
        tokens: NDArray[np.int64] = self._by_last.get(text[-1], np.empty(0, np.int64))
        tokens = tokens[self._lengths[tokens] >= len(text)]
        for offset, byte in enumerate(text):
            tokens = tokens[self._bytes[self._ends[tokens] - len(text) + offset] == byte]
        return set(tokens.tolist())


def spell_breakers(tokenizer: Tokenizer, breakers: Sequence[str]) -> DryBreakers:
    """Returns the spellings of the breakers. The first call for a tokenizer reads all of its tokens."""
    return kept_with(tokenizer, _TokenTexts).spell(tuple(breakers))
