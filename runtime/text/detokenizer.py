"""Turns tokens into text as they arrive, and never gives out half a character.

The joined pieces equal the decoding of all ids at once. A token's text depends on the tokens before it (a decoder
strips the leading space of a sentence) and, while a character is incomplete, on the tokens after it. So a window of
tokens is decoded with and without the new tokens, and the difference is given out as soon as it can no longer change.

A run of byte tokens (<0xE2>) is one text if all its bytes together are UTF-8; otherwise each of them is U+FFFD. So the
text of a run is uncertain until the run ends, or until a byte comes that is not valid UTF-8 in its place. The run is
decoded in pieces as the tokens arrive, and the pieces are kept back. So the end of a run, however long the run is,
costs no more than joining the pieces.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from tensorwright.runtime.text.tokenizer import Tokenizer

MAX_CHARACTER_BYTES = 4  # each token has at least one byte
REPLACEMENT = "\ufffd"  # a decoder writes this character for bytes that are not, or not yet, UTF-8
PIECE = 64  # the number of byte tokens of a run that are decoded together


class IncrementalDetokenizer:
    """The detokenizer of one completion. `push` returns the text that became certain, `flush` the rest at the end.

    kept: special tokens that are not skipped although skip_special_tokens is True.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True, kept: frozenset[int] = frozenset()):
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._kept = kept
        self._window: list[int] = []  # the tokens that were given out last, then the tokens that are held back
        self._given = 0  # the number of tokens of the window that were given out
        self._given_text = ""  # the text of the tokens that were given out, decoded alone
        self._retry = 0  # the window length at which the next decoding is worth its time
        self._run: _ByteRun | None = None  # the run to which the last token belongs

    def push(self, tokens: Sequence[int]) -> str:
        """Adds new tokens and returns the text that became certain, "" if there is none.

        tokens: the newest ids, any number.
        """
        return "".join(self._push_one(token) for token in tokens)

    def flush(self) -> str:
        """Returns the text that was held back. An incomplete character becomes U+FFFD, as the tokenizer decodes it."""
        text = self._end_run()
        if len(self._window) == self._given:
            return text
        return text + self._give_out(self._decode(self._window))

    def _push_one(self, token: int) -> str:
        if not self._tokenizer.has_text(token, self._skip, self._kept):
            return ""
        byte = self._tokenizer.byte_of(token)
        return self._end_run() + self._push_text(token) if byte is None else self._push_byte(token, byte)

    def _push_text(self, token: int) -> str:
        """Adds a token that is no byte token, and returns the text that became certain."""
        self._window.append(token)
        if len(self._window) < self._retry:
            return ""
        text = self._decode(self._window)
        if text.endswith(REPLACEMENT):
            return self._give_out_certain(text)
        if len(text) <= len(self._given_text):  # its space was stripped, so the token cannot start a window
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
        """Ends the run and returns the text that was kept back. The run's last tokens stay in the window, because the
        text of the next token may depend on them."""
        run, self._run = self._run, None
        if run is None or run.broken:
            return ""
        return "".join(run.kept) if run.whole else self._break_run(run)

    def _break_run(self, run: _ByteRun) -> str:
        """Returns the text of a run that is not UTF-8, up to its newest token. The window keeps a single invalid byte
        of the run, because that has the same effect on the text before and after it as the whole run."""
        self._window, self._given, self._given_text = [*run.window[: run.start], run.odd], run.given, run.given_text
        return self._give_out(self._decode(self._window)) + REPLACEMENT * (run.length - 1)

    def _wait(self) -> None:
        """Puts off the next decoding until the window has grown by an eighth of the tokens that are held back, so that
        a long invalid text does not cost quadratic time."""
        held = len(self._window) - self._given
        self._retry = len(self._window) + 1 + held // 8

    def _give_out_certain(self, text: str) -> str:
        """Gives out the certain part of a text that ends in an incomplete or invalid character.

        If the tokenizer decodes bytes, the text before a cut is certain if both sides of the cut, decoded alone, give
        the same text as together.
        """
        if self._tokenizer.decodes_bytes:
            end = len(self._window)
            for cut in range(end - 1, max(self._given, end - MAX_CHARACTER_BYTES), -1):
                left, right = self._decode(self._window[:cut]), self._decode(self._window[cut:])
                if left + right == text:
                    rest, self._window = self._window[cut:], self._window[:cut]
                    new = self._give_out(left)
                    self._window += rest
                    return new
        self._wait()
        return ""

    def _give_out(self, text: str) -> str:
        """Returns the new part of the window's text, and shortens the window.

        The tokens that are given out now start the next window. A decoder may strip the leading space of a window's
        first token, so that must be a token whose text was given out already.
        """
        new = text[len(self._given_text) :]
        self._window = self._window[self._given :]
        self._given = len(self._window)
        self._given_text = self._decode(self._window)
        self._retry = 0
        return new

    def _decode(self, ids: list[int]) -> str:
        # Tokens that are to be skipped never come here, so with `kept` nothing else is left for the library to skip.
        return self._tokenizer.decode(ids, skip_special_tokens=self._skip and not self._kept)


class _ByteRun:
    """A run of byte tokens.

    window, given, given_text: those of the detokenizer at the start of the run. The detokenizer only appends to its
    window or replaces it by another list, so the first `start` tokens of `window` stay the same.
    """

    def __init__(self, window: list[int], given: int, given_text: str):
        self.window, self.given, self.given_text = window, given, given_text
        self.start = len(window)
        self.length = 0
        self.kept: list[str] = []  # the text of the run's first tokens, valid if the whole run is UTF-8
        self.broken = False  # True means that the run is not UTF-8, whatever follows
        self.odd = -1  # a token of the run that is not a whole character; a run of ASCII has none
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
        """Whether the run could end here: its bytes so far are whole characters."""
        return not self._characters.getstate()[0]
