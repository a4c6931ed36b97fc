"""Where one completion stands in its grammar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tensorwright.errors import InvalidRequestError

if TYPE_CHECKING:
    from tensorwright.runtime.guided.vocabulary import GuidedVocabulary


MOST_WORDS = 600  # characters of the library's message


class GrammarMatcher:
    """ends_by_token: a sampled end-of-sequence token ends the completion; else `ended` says that nothing can follow."""

    def __init__(self, vocabulary: GuidedVocabulary, matcher: Any, ends_by_token: bool, name: str):
        self.vocabulary = vocabulary
        self.matcher = matcher
        self.generated = 0  # tokens so far
        self.ended = False
        self._row = np.zeros(vocabulary.library_words, dtype=np.uint32)  # what the library writes to
        self._address = self._row.ctypes.data
        self._ends_by_token = ends_by_token
        self._name = name

    def advance(self, tokens: Sequence[int]) -> NDArray[np.uint32] | None:
        """tokens: the newest. The mask of the next, None if the grammar is at its end."""
        if not self.matcher.consume_tokens(tokens):
            self._fail()
        self.generated += len(tokens)
        self.matcher.unsafe_compute_mask_ptr(self._address, self._row.nbytes)
        if self.matcher.is_error():  # the row is of no use then
            self._fail()
        mask = self.vocabulary.trim(self._row, self._ends_by_token)
        if mask.any():
            return mask
        if self._ends_by_token or not self.matcher.is_accepting():
            raise self._error("no token of the model continues what it admits")
        self.ended = True
        return None

    def _fail(self) -> None:
        raise self._error(library_words(self.matcher))

    def _error(self, why: str) -> InvalidRequestError:
        return InvalidRequestError(f"{self._name} could not be followed after {self.generated} tokens: {why}")


def library_words(matcher: Any) -> str:
    """Why a matcher gave up."""
    words = matcher.get_error().replace("<non-verbose/>", "").strip()
    if words.startswith("NoExtension"):
        return "no text matches it"
    return clipped(words)


def clipped(words: str) -> str:
    """Grammars are long, and messages quote them."""
    return words if len(words) <= MOST_WORDS else words[:MOST_WORDS] + "..."
