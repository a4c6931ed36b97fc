"""Where one completion stands in its grammar."""

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
    """ends_by_token: a sampled end-of-sequence token ends the completion; else `ended` says that nothing can follow.
    begin: makes the library's matcher, when it is first needed: one that waits in the queue holds no memory."""

    def __init__(self, masks: TokenMasks, begin: Callable[[], LibraryMatcher], ends_by_token: bool, name: str):
        self._masks = masks
        self.budget = MaskBudget()
        self.generated = 0  # tokens so far
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
        """What the library writes to."""
        return np.zeros(self._masks.library_words, dtype=np.uint32)

    def cancel(self) -> None:
        """Ends what is computed now, from any thread; it is in error then."""
        if self._canceller is not None:
            self._canceller.cancel()

    def advance(self, tokens: Sequence[int]) -> NDArray[np.uint32] | None:
        """tokens: the newest. The mask of the next, None if the grammar is at its end."""
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
