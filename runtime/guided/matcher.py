"""Follows the tokens of one completion in its grammar, and computes the mask of the next token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tensorwright.errors import InvalidRequestError
from tensorwright.runtime.guided.library import Canceller, LibraryMatcher
from tensorwright.runtime.guided.mask_budget import MaskBudget
from tensorwright.runtime.guided.token_masks import TokenMasks
from tensorwright.runtime.guided.words import library_words


class GrammarMatcher:
    """The position of one completion in its grammar.

    begin: makes the library's matcher, on its first use, so that a completion in the queue takes no memory for it.
    ends_by_token: True means that a sampled end-of-sequence token ends the completion. False means that `ended` becomes
    True when no token can follow.
    name: the name of the parameter, for errors.
    """

    def __init__(self, masks: TokenMasks, begin: Callable[[], LibraryMatcher], ends_by_token: bool, name: str):
        self._masks = masks
        self.budget = MaskBudget()
        self.generated = 0  # the number of tokens so far
        self.ended = False
        self._begin = begin
        self._canceller: Canceller | None = None
        self._ends_by_token = ends_by_token
        self._name = name

    @cached_property
    def matcher(self) -> LibraryMatcher:
        matcher = self._begin()
        self._canceller = matcher.canceller()
        return matcher

    @cached_property
    def _row(self) -> NDArray[np.uint32]:
        """The row into which the library writes a mask, uint32 [library_words]."""
        return np.zeros(self._masks.library_words, dtype=np.uint32)

    def cancel(self) -> None:
        """Stops the computation of a mask, from any thread. The matcher is in error afterwards."""
        if self._canceller is not None:
            self._canceller.cancel()

    def advance(self, tokens: Sequence[int]) -> NDArray[np.uint32] | None:
        """Moves forward over the newest tokens. Returns the mask of the next token, None at the end of the grammar.

        Raises InvalidRequestError if the grammar cannot be followed.
        """
        if not self.matcher.consume(tokens):
            self._fail()
        self.generated += len(tokens)
        if not self.matcher.compute_mask(self._row):
            self._fail()
        mask = self._masks.trim(self._row, self._ends_by_token)
        if mask.any():
            return mask
        if self._ends_by_token or not self.matcher.is_accepting:
            raise self.error("no token of the model continues what it admits")
        self.ended = True
        return None

    def _fail(self) -> None:
        raise self.error(library_words(self.matcher))

    def error(self, why: str) -> InvalidRequestError:
        return InvalidRequestError(f"{self._name} could not be followed after {self.generated} tokens: {why}")
