"""Defines the class of `LLM.tokenizer`, which encodes and decodes text as the engine does for requests."""

from __future__ import annotations

from collections.abc import Sequence

from tensorwright.errors import InvalidRequestError
from tensorwright.number_checks import is_int
from tensorwright.runtime.engine.engine_dir import EngineDir
from tensorwright.runtime.text.tokenizer import Tokenizer


class LLMTokenizer:
    """Encodes text to token ids and decodes ids to text. It is thread-safe. Raises InvalidRequestError for a text that
    is not valid Unicode, and for an id that is no token."""

    def __init__(self, engine: EngineDir):
        """Raises InvalidRequestError for an engine that was built without a tokenizer."""
        if engine.tokenizer is None:
            raise InvalidRequestError(
                "the engine has no tokenizer: prompts are token ids, and detokenize must be False"
            )
        self._tokenizer: Tokenizer = engine.tokenizer
        self._vocab_size = engine.vocab_size

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Returns the token ids of a text.

        add_special_tokens: True adds the special tokens that the model's tokenizer puts around a prompt; use False for
        a part of a text, or for a text that a chat template made.
        """
        return self._tokenizer.encode(text, add_special_tokens)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Returns the text of the ids, as a request's output has it. A part of a character becomes U+FFFD."""
        for token in ids:
            if not is_int(token) or not 0 <= token < self._vocab_size:
                raise InvalidRequestError(f"ids must be integers from 0 to {self._vocab_size - 1}, got {token!r}")
        return self._tokenizer.decode([int(token) for token in ids], skip_special_tokens)

    def count(self, text: str, add_special_tokens: bool = True) -> int:
        """Returns the number of tokens that the text has as a prompt."""
        return len(self.encode(text, add_special_tokens))
