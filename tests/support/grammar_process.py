"""A vocabulary for grammars, as engines of bytes have it, and the process that compiles grammars for it."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from support.fake_runtime import byte_tokenizer
from tensorwright import GuidedDecodingParams
from tensorwright.runtime.guided.vocabulary import GuidedVocabulary
from tensorwright.runtime.text.tokenizer import Tokenizer

DIGITS = GuidedDecodingParams(regex="[0-9]+")


def engine(end: int = 256) -> Any:
    """As far as a vocabulary looks at one. end: its end-of-sequence token; another one is another vocabulary."""
    known = Tokenizer(byte_tokenizer())
    return SimpleNamespace(path="made", tokenizer=known, vocab_size=known.vocab_size, eos_token_ids=[end])


def children(process: int | None) -> list[int]:
    found = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [int(child) for child in found]


def begin_compiling(known: GuidedVocabulary, params: GuidedDecodingParams, errors: list[Exception]) -> threading.Thread:
    """A thread, begun, that adds the error to `errors` if there is one."""

    def work() -> None:
        try:
            known.compile(params)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    return thread
