"""Follows the tokens of one completion in its grammar, and computes the mask of the next token.

Where a mask leaves one token alone, the matcher can move over that token before the engine has drawn it, and compute
the masks behind it. The engine then computes all of these tokens in one step (runtime/core/engine/forced_tokens.h)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tensorwright.errors import InvalidRequestError
from tensorwright.runtime.guided.library import Canceller, LibraryMatcher
from tensorwright.runtime.guided.mask_budget import MaskBudget
from tensorwright.runtime.guided.token_masks import TokenMasks
from tensorwright.runtime.guided.words import library_words

MAX_FORESEEN = 32
"""The most tokens that a matcher is ahead of the engine. kMaxForced of the engine is the same number."""


class GrammarMatcher:
    """The position of one completion in its grammar.

    begin: makes the library's matcher, on its first use, so that a completion in the queue takes no memory for it.
    ends_by_token: True means that a sampled end-of-sequence token ends the completion. False means that `ended` becomes
    True when no token can follow.
    name: the name of the parameter, for errors.

    Who calls a method that moves it holds `lock` until the mask is told, for two threads may compute masks of one
    completion one after the other.
    """

    def __init__(self, masks: TokenMasks, begin: Callable[[], LibraryMatcher], ends_by_token: bool, name: str):
        self._masks = masks
        self.budget = MaskBudget()
        self.lock = threading.Lock()
        self.generated = 0  # the number of tokens so far, those that are foreseen among them
        self._forced: int | None = None  # the token that the last mask leaves alone
        self._foreseen: list[int] = []  # the tokens that the engine has not drawn yet
        self._end: InvalidRequestError | bool = False  # what comes behind these: an error, or the end of the grammar
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
        fresh = tokens[len(self._foreseen) :]
        self._foreseen.clear()
        if isinstance(self._end, InvalidRequestError):
            raise self._end
        mask = None if self._end else self._next(fresh)
        self.ended = mask is None
        return mask

    def take_foreseen(self, tokens: Sequence[int]) -> bool:
        """Takes the newest tokens if they were foreseen and the mask behind them was, too. Else advance() must."""
        if len(tokens) > len(self._foreseen) or (len(tokens) == len(self._foreseen) and self._end is not False):
            return False
        del self._foreseen[: len(tokens)]
        return True

    @property
    def foresees(self) -> bool:
        """Whether foresee() may be called: the last mask forces a token, and the masks are quick."""
        ahead = len(self._foreseen) < MAX_FORESEEN and self._end is False
        return self._forced is not None and ahead and not self.budget.slow

    def foresee(self) -> NDArray[np.uint32] | None:
        """Moves over the token that the last mask forces, before it is drawn. Returns the mask behind it, or None if
        the completion ends there. An error of the grammar waits until the engine comes to it."""
        token = self._forced
        assert token is not None
        self._foreseen.append(token)
        try:
            mask = self._next([token])
        except InvalidRequestError as error:
            self._end = error
            return None
        self._end = mask is None
        return mask

    def _next(self, tokens: Sequence[int]) -> NDArray[np.uint32] | None:
        if not self.matcher.consume(tokens):
            self._fail()
        self.generated += len(tokens)
        if not self.matcher.compute_mask(self._row):
            self._fail()
        mask = self._masks.trim(self._row, self._ends_by_token)
        self._forced = self._masks.only_token(mask)
        if mask.any():
            return mask
        if self._ends_by_token or not self.matcher.is_accepting:
            raise self.error("no token of the model continues what it admits")
        return None

    def _fail(self) -> None:
        raise self.error(library_words(self.matcher))

    def error(self, why: str) -> InvalidRequestError:
        return InvalidRequestError(f"{self._name} could not be followed after {self.generated} tokens: {why}")
