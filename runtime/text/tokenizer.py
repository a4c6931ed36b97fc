"""The engine's tokenizer: tokenizer.json through the `tokenizers` library, nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property, lru_cache
from pathlib import Path

import tokenizers
from tokenizers import AddedToken

from tensorwright.errors import EngineError, InvalidRequestError, is_panic
from tensorwright.runtime.text.special_tokens import mark_special
from tensorwright.runtime.text.token_span import TokenSpan, token_span
from tensorwright.runtime.text.tokenizer_parts import component_state, sequence_parts

HEX = "0123456789ABCDEFabcdef"
SHORT = 256
"""Characters or tokens that take microseconds. Calls of the library for more go through its batches of one, which let
go of the interpreter's lock; for less it is not worth it."""
KEPT_TEXTS = 1 << 14
"""Tokens of which the text is remembered: those that stand in most tables of logprobs."""
PIECE = 1 << 16
"""Characters of a piece of a long text."""


class Tokenizer:
    """Text to ids and back. Encoding adds the special tokens that the model's own tokenizer adds.

    special: tokens that are special beside those that the tokenizer marks itself. decodes_bytes: whether a text is the
    bytes of its tokens one after the other, read as UTF-8.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer, special: Iterable[AddedToken] = ()):
        # A file may carry training-time truncation and padding; neither belongs to a prompt.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        mark_special(tokenizer, special)
        self._tokenizer = tokenizer
        self._special = {id for id, token in tokenizer.get_added_tokens_decoder().items() if token.special}
        decoder_parts = [part["type"] for part in sequence_parts(component_state(tokenizer.decoder), "decoders")]
        self._bytes = _byte_tokens(tokenizer) if "ByteFallback" in decoder_parts else {}
        self.token_text = lru_cache(KEPT_TEXTS)(self._token_text)
        self.decodes_bytes = decoder_parts == ["ByteLevel"]

    @classmethod
    def from_bytes(cls, data: bytes, path: Path, special: Iterable[AddedToken] = ()) -> Tokenizer:
        """data: of a tokenizer.json; path: where it was read, for messages. Raises EngineError."""
        try:
            return cls(tokenizers.Tokenizer.from_buffer(data), special)
        except BaseException as error:  # the library raises plain Exception for every malformed file, or panics
            if not isinstance(error, Exception) and not is_panic(error):
                raise
            raise EngineError(
                f"{path}: not a tokenizer that tokenizers {tokenizers.__version__} reads ({error}); "
                "rebuild the engine, or install the tokenizers version it was built with"
            ) from error

    @property
    def library(self) -> tokenizers.Tokenizer:
        """The library's own object. Who changes it changes this tokenizer."""
        return self._tokenizer

    @property
    def vocab_size(self) -> int:
        """Ids the tokenizer knows; the model's vocabulary may be padded beyond it."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    @cached_property
    def span(self) -> TokenSpan | str:
        """How much text one token stands for at most, or why that is not known."""
        return token_span(self._tokenizer)

    def least_tokens(self, text: str) -> int:
        """No encoding of the text has fewer; 0 where `span` is not known. The text is not encoded."""
        return self.span.least_tokens(text) if isinstance(self.span, TokenSpan) else 0

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Raises InvalidRequestError for what is no text."""
        return self._encoding(text, add_special_tokens).ids

    def encode_within(self, text: str, most: int, add_special_tokens: bool = True) -> list[int] | int:
        """The ids, or their number if there are more than `most`. Raises InvalidRequestError for what is no text.

        A long text is counted in pieces first, and given up when they have twice as many tokens together: encoding the
        whole of what cannot fit would take some 200 bytes per token. The number is then that of the pieces.
        """
        counted = 0
        for start in range(0, len(text) if len(text) > PIECE else 0, PIECE):
            counted += len(self._encoding(text[start : start + PIECE], False))
            if counted > 2 * most:
                return counted
        encoding = self._encoding(text, add_special_tokens)
        return len(encoding) if len(encoding) > most else encoding.ids

    def _encoding(self, text: str, add_special_tokens: bool) -> tokenizers.Encoding:
        try:
            if len(text) <= SHORT:
                return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
            return self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0]
        except (TypeError, ValueError) as error:  # a lone surrogate is not text
            raise InvalidRequestError(f"{text[:200]!r} is not valid Unicode text: {error}") from error
        except Exception as error:  # the plain class, of a tokenizer without a token for what is unknown to it
            raise InvalidRequestError(f"the tokenizer has no tokens for {text[:200]!r}: {error}") from error

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        if len(ids) <= SHORT:
            return self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
        return self._tokenizer.decode_batch([ids], skip_special_tokens=skip_special_tokens)[0]

    def _token_text(self, token: int) -> str:
        """The token decoded alone, special or not: what a table of logprobs shows, some hundred for each step."""
        return self._tokenizer.decode([token], skip_special_tokens=False)

    def spelling(self, token: int) -> str | None:
        """As the vocabulary has it, which need not be text; None beyond the ids of the tokenizer."""
        return self._tokenizer.id_to_token(token)

    def has_text(self, token: int, skip_special_tokens: bool) -> bool:
        """Whether decoding sees the token at all: not a skipped special one, nor one beyond the tokenizer's ids."""
        if skip_special_tokens and token in self._special:
            return False
        return self._tokenizer.id_to_token(token) is not None

    def byte_of(self, token: int) -> int | None:
        """Of a token that is one byte (<0xE2>), which the decoder joins with its neighbours; None of any other."""
        return self._bytes.get(token)


def _byte_tokens(tokenizer: tokenizers.Tokenizer) -> dict[int, int]:
    """The byte of each, by id; of all spellings that the library takes for one."""
    spellings = {f"<0x{high}{low}>": int(high + low, 16) for high in "+" + HEX for low in HEX}
    found = {tokenizer.token_to_id(spelling): byte for spelling, byte in spellings.items()}
    return {token: byte for token, byte in found.items() if token is not None}
