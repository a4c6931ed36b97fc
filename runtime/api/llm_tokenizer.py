"""What `LLM.tokenizer` is: text to token ids and back, as the engine does it for requests."""

from __future__ import annotations

from collections.abc import Sequence

from tensorwright.errors import InvalidRequestError
from tensorwright.runtime.base.parameter_checks import is_int
from tensorwright.runtime.engine.engine_dir import EngineDir
from tensorwright.runtime.text.tokenizer import Tokenizer


class LLMTokenizer:
    """Thread-safe. What is no text or no token raises InvalidRequestError."""

    def __init__(self, engine: EngineDir):
        """InvalidRequestError for an engine that was built without a tokenizer."""
        if engine.tokenizer is None:
            raise InvalidRequestError(
                "the engine has no tokenizer: prompts are token ids, and detokenize must be False"
            )
        self._tokenizer: Tokenizer = engine.tokenizer
        self._vocab_size = engine.vocab_size

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The ids of a prompt's text. add_special_tokens: with those that the model's tokenizer puts around a prompt;
        False for a part of a text, or for what a chat template has made."""
        return self._tokenizer.encode(text, add_special_tokens)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of the ids, as a request's output has it. What is part of a character becomes U+FFFD."""
        for token in ids:
            if not is_int(token) or not 0 <= token < self._vocab_size:
                raise InvalidRequestError(f"ids must be integers from 0 to {self._vocab_size - 1}, got {token!r}")
        return self._tokenizer.decode([int(token) for token in ids], skip_special_tokens)

    def count(self, text: str, add_special_tokens: bool = True) -> int:
        """How many tokens the text takes as a prompt."""
        return len(self.encode(text, add_special_tokens))
