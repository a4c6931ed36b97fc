"""Text from tokens as they come, never half a character.

The pieces joined equal the decoding of all ids at once. A token's text depends on what stands before it (a
decoder strips the leading space of a sentence) and, while a character is incomplete, on what follows. So a window
of tokens is decoded with and without the new ones, and the difference is given out once it can no longer change.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorwright.runtime.tokenizer import Tokenizer

LONGEST_CHARACTER = 4  # bytes, and each token has one at least
REPLACEMENT = "\ufffd"  # what a decoder puts for bytes that are not, or not yet, UTF-8


class IncrementalDetokenizer:
    """One request's. `push` gives the text that became certain, `flush` the rest at the end."""

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True):
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._window: list[int] = []  # tokens given out last, then those held back
        self._given = 0  # how many of the window are given out
        self._given_text = ""  # their text, decoded alone
        self._retry = 0  # window length at which decoding is worth another try

    def push(self, tokens: Sequence[int]) -> str:
        """tokens: the newest ids, any number. Returns "" while their text may still change."""
        return "".join(self._push_one(token) for token in tokens)

    def flush(self) -> str:
        """What is held back, as the tokenizer decodes it: an incomplete character becomes U+FFFD."""
        if len(self._window) == self._given:
            return ""
        return self._give_out(self._decode(self._window))

    def _push_one(self, token: int) -> str:
        if not self._tokenizer.has_text(token, self._skip):
            return ""
        self._window.append(token)
        # A run of byte tokens is valid or invalid as a whole, so nothing of it is certain before its end.
        if self._tokenizer.is_byte_token(token) or len(self._window) < self._retry:
            return ""
        text = self._decode(self._window)
        if text.endswith(REPLACEMENT):
            return self._give_out_certain(text)
        if len(text) <= len(self._given_text):  # a stripped space: not a start for the next window, see _give_out
            self._wait()
            return ""
        return self._give_out(text)

    def _wait(self) -> None:
        """Until the window has grown by some of what is held: long garbage must not cost quadratic time."""
        held = len(self._window) - self._given
        self._retry = len(self._window) + 1 + held // 8

    def _give_out_certain(self, text: str) -> str:
        """Of a text that ends in a part of a character, or in what is none, all that later bytes cannot change. In a
        text of bytes that is all before a place where both sides decode to the same alone as together."""
        if self._tokenizer.decodes_bytes:
            end = len(self._window)
            for cut in range(end - 1, max(self._given, end - LONGEST_CHARACTER), -1):
                left, right = self._decode(self._window[:cut]), self._decode(self._window[cut:])
                if left + right == text:
                    rest, self._window = self._window[cut:], self._window[:cut]
                    new = self._give_out(left)
                    self._window += rest
                    return new
        self._wait()
        return ""

    def _give_out(self, text: str) -> str:
        """The part of the window's text that is new. What is given out now starts the next window, so that its
        first token, whose leading space a decoder may strip, is never one whose text is still to come."""
        new = text[len(self._given_text) :]
        self._window = self._window[self._given :]
        self._given = len(self._window)
        self._given_text = self._decode(self._window)
        self._retry = 0
        return new

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=self._skip)
