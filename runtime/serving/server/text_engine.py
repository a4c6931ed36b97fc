"""Gives a request its engine, with the tokenizer that every answer needs and with a fingerprint."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from fastapi import Request

from tensorwright.errors import InvalidRequestError, UnknownModelError
from tensorwright.runtime.requests.pooled_rows import pooling_of
from tensorwright.runtime.requests.prompts import check_generates
from tensorwright.runtime.serving.server.models import EngineRegistry
from tensorwright.runtime.serving.server.served_model import ServedModel
from tensorwright.runtime.text.tokenizer import Tokenizer
from tensorwright.runtime.text.tokenizer_parts import byte_alphabet

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
REPLACEMENT = "\ufffd"


@dataclass(frozen=True)
class TextEngine:
    """An engine with a tokenizer. name: the name that clients call the engine, or the adapter that changes it. adapter:
    the same name if it is an adapter's. key: a text of the adapter's content."""

    name: str
    llm: ServedModel
    tokenizer: Tokenizer
    adapter: str | None = None
    key: str = ""

    @property
    def sampling_defaults(self) -> dict[str, Any]:
        """The defaults of a request to this name: the model's, with the adapter that is named."""
        own = {} if self.adapter is None else {"adapter": self.adapter}
        return {**self.llm.sampling_defaults, **own}

    @property
    def fingerprint(self) -> str:
        """A text that is equal for equal engines with equal adapters on all machines."""
        return f"fp_{self.llm.engine.digest}{'_' if self.key else ''}{self.key[:16]}"

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


def find_engine(request: Request, name: str | None, *tasks: str) -> TextEngine:
    """Returns the engine of a name, which may be that of an adapter; None means the only engine.

    tasks: what the endpoint may ask an engine for, the usual one first; () means text. Raises UnknownModelError for an
    unknown name, TaskError for an engine of another task, and InvalidRequestError if the name is missing or the engine
    has no tokenizer.
    """
    engine = find_any_engine(request, name)
    if tasks:
        pooling_of(engine.llm.engine, *tasks)
    else:
        check_generates(engine.llm.engine)
    return engine


def find_any_engine(request: Request, name: str | None) -> TextEngine:
    """Returns the engine of a name as `find_engine` does, whatever its task is."""
    registry: EngineRegistry = request.app.state.engines
    if name is None:
        name = registry.only
    owner = None if name in registry else registry.find_adapter(name)
    llm = registry.find(name) if owner is None else owner[1]
    if llm.engine.tokenizer is None:
        raise InvalidRequestError(
            f"model {name!r} has no tokenizer, so it cannot be served as text: "
            "build it from a checkpoint with a tokenizer.json"
        )
    adapter = None if owner is None else llm.adapters.get(name)
    if owner is not None and adapter is None:
        raise UnknownModelError(f"the adapter {name!r} has just been unloaded")
    if adapter is None:
        return TextEngine(name, llm, llm.engine.tokenizer)
    return TextEngine(name, llm, llm.engine.tokenizer, name, adapter.key)
