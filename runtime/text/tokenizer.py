"""Encodes and decodes text with the engine's tokenizer.json, through the `tokenizers` library alone."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property, lru_cache
from itertools import accumulate
from pathlib import Path

import tokenizers
from tokenizers import AddedToken

from tensorwright.errors import EngineError, InvalidRequestError, is_panic
from tensorwright.runtime.text.special_tokens import mark_special
from tensorwright.runtime.text.token_span import TokenSpan, token_span
from tensorwright.runtime.text.tokenizer_parts import component_state, sequence_parts

HEX = "0123456789ABCDEFabcdef"
SHORT = 256
"""The most characters or tokens of a short call, which takes microseconds. Longer calls go through the library's
batches of one, which release the interpreter's lock; for a short call that is not worth it."""
KEPT_TEXTS = 1 << 14
"""The number of tokens whose text is cached. Tables of logprobs show mostly the same tokens."""
PIECE = 1 << 16
"""The number of characters in a piece of a long text."""


class Tokenizer:
    """Encodes text to ids and decodes ids to text. Encoding adds the special tokens that the model's tokenizer adds.

    special: the tokens that are special beside those that the tokenizer marks itself.
    decodes_bytes: whether decoding joins the bytes of the tokens and reads them as UTF-8.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer, special: Iterable[AddedToken] = ()):
        # A tokenizer.json may set truncation and padding for training. A prompt must have neither.
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
        """Makes a tokenizer from the bytes of a tokenizer.json. path: the file, for messages. Raises EngineError."""
        try:
            return cls(tokenizers.Tokenizer.from_buffer(data), special)
        except BaseException as error:  # for a malformed file the library raises a plain Exception, or panics
            if not isinstance(error, Exception) and not is_panic(error):
                raise
            raise EngineError(
                f"{path}: not a tokenizer that tokenizers {tokenizers.__version__} reads ({error}); "
                "rebuild the engine, or install the tokenizers version it was built with"
            ) from error

    @property
    def library(self) -> tokenizers.Tokenizer:
        """The library's own object. A change of this object changes this tokenizer."""
        return self._tokenizer

    @property
    def vocab_size(self) -> int:
        """The number of ids that the tokenizer knows. The model's padded vocabulary may be larger."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    @cached_property
    def span(self) -> TokenSpan | str:
        """The bound on the text that one token stands for, or a text that says why there is no bound."""
        return token_span(self._tokenizer)

    def least_tokens(self, text: str) -> int:
        """Returns a lower bound on the tokens of the text, 0 if `span` is not known. It does not encode the text."""
        return self.span.least_tokens(text) if isinstance(self.span, TokenSpan) else 0

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Returns the token ids of the text. Raises InvalidRequestError for a text that is not valid Unicode."""
        return self._encoding(text, add_special_tokens).ids

    def encode_within(self, text: str, most: int, add_special_tokens: bool = True) -> list[int] | int:
        """Returns the ids, or their number if there are more than `most`. Raises what `encode` raises.

        A long text is counted in pieces first. If the pieces have more than 2 * most tokens, their number is returned,
        because to encode the whole of a text that cannot fit would take some 200 bytes per token.
        """
        counted = 0
        for start in range(0, len(text) if len(text) > PIECE else 0, PIECE):
            counted += len(self._encoding(text[start : start + PIECE], False))
            if counted > 2 * most:
                return counted
        encoding = self._encoding(text, add_special_tokens)
        return len(encoding) if len(encoding) > most else encoding.ids

    def encode_with_ends(self, text: str) -> tuple[list[int], list[int]]:
        """Returns the token ids of the text, and for each the number of characters up to its end. A character of
        several tokens ends with the first of them. Raises what `encode` raises."""
        encoding = self._encoding(text, True, with_places=True)
        return encoding.ids, list(accumulate((end for _, end in encoding.offsets), max))

    def _encoding(self, text: str, add_special_tokens: bool, *, with_places: bool = False) -> tokenizers.Encoding:
        try:
            if len(text) <= SHORT or with_places:
                return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
            return self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0]
        except (TypeError, ValueError) as error:  # for example for a lone surrogate
            raise InvalidRequestError(f"{text[:200]!r} is not valid Unicode text: {error}") from error
        except Exception as error:  # a tokenizer without a token for unknown text raises a plain Exception
            raise InvalidRequestError(f"the tokenizer has no tokens for {text[:200]!r}: {error}") from error

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        if len(ids) <= SHORT:
            return self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
        return self._tokenizer.decode_batch([ids], skip_special_tokens=skip_special_tokens)[0]

    def _token_text(self, token: int) -> str:
        """Returns the text of the token alone, special or not. Tables of logprobs need some hundred of these texts for
        each step."""
        return self._tokenizer.decode([token], skip_special_tokens=False)

    def spelling(self, token: int) -> str | None:
        """Returns the vocabulary's entry for the token, which need not be text; None for an unknown id."""
        return self._tokenizer.id_to_token(token)

    def special_id(self, text: str) -> int | None:
        """Returns the id of the special token with this text, None if there is none."""
        token = self._tokenizer.token_to_id(text)
        return token if token in self._special else None

    def has_text(self, token: int, skip_special_tokens: bool, kept: frozenset[int] = frozenset()) -> bool:
        """Whether decoding sees the token: the tokenizer knows its id, and it is no special token that is skipped.

        kept: special tokens that are not skipped.
        """
        if skip_special_tokens and token in self._special and token not in kept:
            return False
        return self._tokenizer.id_to_token(token) is not None

    def byte_of(self, token: int) -> int | None:
        """Returns the byte of a byte token (<0xE2>), which the decoder joins with its neighbours; else None."""
        return self._bytes.get(token)


def _byte_tokens(tokenizer: tokenizers.Tokenizer) -> dict[int, int]:
    """Returns {token id: byte} of the byte tokens, for all spellings that the library accepts as a byte token."""
    spellings = {f"<0x{high}{low}>": int(high + low, 16) for high in "+" + HEX for low in HEX}
    found = {tokenizer.token_to_id(spelling): byte for spelling, byte in spellings.items()}
    return {token: byte for token, byte in found.items() if token is not None}
