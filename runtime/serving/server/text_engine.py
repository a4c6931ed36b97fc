"""Gives a request its engine, with the tokenizer that every answer needs and with a fingerprint."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

import xxhash
from fastapi import Request

from tensorwright.errors import InvalidRequestError
from tensorwright.runtime.api.llm import LLM
from tensorwright.runtime.text.tokenizer import Tokenizer
from tensorwright.runtime.text.tokenizer_parts import byte_alphabet

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
REPLACEMENT = "\ufffd"


@dataclass(frozen=True)
class TextEngine:
    """An engine with a tokenizer. name: the name that clients call the engine."""

    name: str
    llm: LLM
    tokenizer: Tokenizer

    @property
    def fingerprint(self) -> str:
        """A text that is equal for equal engines on all machines."""
        return _fingerprint(tuple(sorted((name, file.digest) for name, file in self.llm.engine.files.items())))

    def token_bytes(self, token: int, decoded: str) -> bytes:
        """Returns the bytes of a token's text. decoded: the text, in which a part of a character is U+FFFD."""
        spelled = self.tokenizer.spelling(token)
        if REPLACEMENT not in decoded or spelled is None:
            return decoded.encode()
        if byte := BYTE_TOKEN.fullmatch(spelled):
            return bytes([int(byte[1], 16)])
        table = byte_alphabet()
        return (
            bytes(table[letter] for letter in spelled)
            if all(letter in table for letter in spelled)
            else decoded.encode()
        )

    def token_text(self, token: int, decoded: str) -> str:
        """Returns a token as OpenAI's API shows it: "bytes:\\xe2\\x82" if the token alone is no valid text."""
        raw = self.token_bytes(token, decoded)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def check_ids(self, ids: list[int]) -> None:
        """Raises InvalidRequestError for the first id that is no token of the engine."""
        size = self.llm.engine.vocab_size
        wrong = next((token for token in ids if not 0 <= token < size), None)
        if wrong is not None:
            raise InvalidRequestError(f"tokens must be integers from 0 to {size - 1}, got {wrong}")


def find_engine(request: Request, name: str | None) -> TextEngine:
    """Returns the engine of a name; None means the only engine. Raises UnknownModelError for an unknown name, and
    InvalidRequestError if the name is missing or the engine has no tokenizer."""
    registry = request.app.state.engines
    if name is None:
        if len(registry) != 1:
            raise InvalidRequestError(f"model must be one of {', '.join(registry)}, got none")
        name = next(iter(registry))
    llm = registry.find(name)
    if llm.engine.tokenizer is None:
        raise InvalidRequestError(
            f"model {name!r} has no tokenizer, so it cannot be served as text: "
            "build it from a checkpoint with a tokenizer.json"
        )
    return TextEngine(name, llm, llm.engine.tokenizer)


@lru_cache(maxsize=64)
def _fingerprint(sums: tuple[tuple[str, str], ...]) -> str:
    return "fp_" + xxhash.xxh3_64_hexdigest("\n".join(f"{digest} {name}" for name, digest in sums).encode())
