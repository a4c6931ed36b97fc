"""Text from tokens as they come, never half a character.

The pieces joined equal the decoding of all ids at once. A token's text depends on what stands before it (a
decoder strips the leading space of a sentence) and, while a character is incomplete, on what follows. So a window
of tokens is decoded with and without the new ones, and the difference is given out once it can no longer change.

A run of byte tokens (<0xE2>) is one text if all its bytes together are UTF-8; if not, each of them is U+FFFD. So
nothing of it is certain before its end, or before a byte that cannot stand where it does. Its text is decoded in pieces
as the tokens come, and kept back: however long a run is, its end costs no more than joining these.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from tensorwright.runtime.text.tokenizer import Tokenizer

LONGEST_CHARACTER = 4  # bytes, and each token has one at least
REPLACEMENT = "\ufffd"  # what a decoder puts for bytes that are not, or not yet, UTF-8
PIECE = 64  # byte tokens of a run that are decoded together


class IncrementalDetokenizer:
    """One request's. `push` gives the text that became certain, `flush` the rest at the end."""

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True):
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._window: list[int] = []  # tokens given out last, then those held back
        self._given = 0  # how many of the window are given out
        self._given_text = ""  # their text, decoded alone
        self._retry = 0  # window length at which decoding is worth another try
        self._run: _ByteRun | None = None  # that the last token belongs to

    def push(self, tokens: Sequence[int]) -> str:
        """tokens: the newest ids, any number. Returns "" while their text may still change."""
        return "".join(self._push_one(token) for token in tokens)

    def flush(self) -> str:
        """What is held back, as the tokenizer decodes it: an incomplete character becomes U+FFFD."""
        text = self._end_run()
        if len(self._window) == self._given:
            return text
        return text + self._give_out(self._decode(self._window))

    def _push_one(self, token: int) -> str:
        if not self._tokenizer.has_text(token, self._skip):
            return ""
        byte = self._tokenizer.byte_of(token)
        return self._end_run() + self._push_text(token) if byte is None else self._push_byte(token, byte)

    def _push_text(self, token: int) -> str:
        """token: no byte token."""
        self._window.append(token)
        if len(self._window) < self._retry:
            return ""
        text = self._decode(self._window)
        if text.endswith(REPLACEMENT):
            return self._give_out_certain(text)
        if len(text) <= len(self._given_text):  # a stripped space: not a start for the next window, see _give_out
            self._wait()
            return ""
        return self._give_out(text)

    def _push_byte(self, token: int, byte: int) -> str:
        if self._run is None:
            self._run = _ByteRun(self._window, self._given, self._given_text)
        run = self._run
        if run.broken:
            return REPLACEMENT
        self._window.append(token)
        run.add(token, byte)
        if run.broken:
            return self._break_run(run)
        if run.whole and len(self._window) >= max(self._given + PIECE, self._retry):
            text = self._decode(self._window)
            if len(text) > len(self._given_text):
                run.kept.append(self._give_out(text))
            else:
                self._wait()
        return ""

    def _end_run(self) -> str:
        """What was kept back of its text. Its last tokens are left in the window, for the next one's text may depend on
        them."""
        run, self._run = self._run, None
        if run is None or run.broken:
            return ""
        return "".join(run.kept) if run.whole else self._break_run(run)

    def _break_run(self, run: _ByteRun) -> str:
        """The text of a run that is no UTF-8, as far as it has come. A single byte that is none has the same effect on
        what stands before and after it."""
        self._window, self._given, self._given_text = [*run.window[: run.start], run.odd], run.given, run.given_text
        return self._give_out(self._decode(self._window)) + REPLACEMENT * (run.length - 1)

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


class _ByteRun:
    """Byte tokens that follow each other. window, given, given_text: the detokenizer's as the run begins; the window is
    only ever added to, or replaced by another list."""

    def __init__(self, window: list[int], given: int, given_text: str):
        self.window, self.given, self.given_text = window, given, given_text
        self.start = len(window)
        self.length = 0
        self.kept: list[str] = []  # the text of its first tokens, if it is one
        self.broken = False  # no UTF-8, whatever follows
        self.odd = -1  # a token of it that is no character alone; there is none in a run of ASCII
        self._characters = codecs.getincrementaldecoder("utf-8")()

    def add(self, token: int, byte: int) -> None:
        self.length += 1
        if byte >= 0x80:
            self.odd = token
        try:
            self._characters.decode(bytes([byte]))
        except UnicodeDecodeError:
            self.broken = True

    @property
    def whole(self) -> bool:
        """Whether it could end here."""
        return not self._characters.getstate()[0]
