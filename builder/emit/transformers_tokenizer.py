"""A checkpoint's tokenizer as transformers reads it: what ours is compared with, and made of where a checkpoint has
only the older files (a sentencepiece model, vocab.json and merges.txt, tiktoken's)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import normalizers

from tensorwright.models.checkpoint import Checkpoint

SENTENCEPIECE = (".model", ".v1", ".v2", ".v3")
LEAST = 2  # tokens beside the special ones
CACHE = "TIKTOKEN_CACHE_DIR"
BLANK = "\u2581"  # what sentencepiece writes for one


class Unreadable(Exception):
    """Why there is no tokenizer of transformers for a checkpoint."""


@dataclass(frozen=True)
class Reference:
    """converted: what the older files became, where the class has another form of it. faults: what is known to be wrong
    with it, as texts."""

    tokenizer: Any
    converted: LibraryTokenizer | None = None
    faults: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return type(self.tokenizer).__name__

    def encode(self, text: str) -> list[int]:
        """Encodes a text with the special tokens that a prompt gets."""
        return list(self.tokenizer(text)["input_ids"])

    def special_tokens(self) -> dict[str, str]:
        """bos_token and its like -> the token's text, those that only the class names too."""
        return {name: str(text) for name, text in self.tokenizer.special_tokens_map.items() if isinstance(text, str)}

    def tokenizer_json(self) -> bytes:
        """The same from build to build."""
        return (self.converted or self.tokenizer.backend_tokenizer).to_str(pretty=True).encode()


def load(checkpoint: Checkpoint) -> Reference:
    """Raises Unreadable."""
    from transformers import AutoTokenizer

    return Reference(_open(AutoTokenizer, checkpoint))


def convert(checkpoint: Checkpoint, texts: Sequence[str]) -> Reference:
    """From the older files. A sentencepiece model itself is asked for the texts: of the forms that could be its, the
    one that encodes most of them alike is taken. Raises Unreadable."""
    from transformers import AutoTokenizer

    model = next((path for path in checkpoint.older_tokenizer_files if _is_sentencepiece(path)), None)
    original = None if model is None else _open_sentencepiece(model)
    reference = Reference(_open(AutoTokenizer, checkpoint))
    _check_vocabulary(reference.tokenizer, checkpoint)
    if model is None:
        return reference
    best, wrong = None, _differing(reference.tokenizer.backend_tokenizer, original, texts)
    for form in _other_forms(checkpoint) if wrong else ():
        if len(differing := _differing(form, original, texts)) < len(wrong):
            best, wrong = LibraryTokenizer.from_str(form.to_str()), differing
    fault = f"the tokenizer made of {model.name} encodes {len(wrong)} texts otherwise than that: {'; '.join(wrong[:3])}"
    return replace(reference, converted=best, faults=[fault] if wrong else [])


def _other_forms(checkpoint: Checkpoint) -> Iterator[LibraryTokenizer]:
    """Llama's class, and as Llama 2's published tokenizer.json: a blank before each text, where the class adds none to
    a text that begins with one."""
    from transformers import LlamaTokenizer

    try:
        opened = _open(LlamaTokenizer, checkpoint).backend_tokenizer
    except Unreadable:
        return
    yield opened
    opened.pre_tokenizer = None
    opened.normalizer = normalizers.Sequence([normalizers.Prepend(BLANK), normalizers.Replace(" ", BLANK)])
    yield opened


def _open(kind: Any, checkpoint: Checkpoint) -> Any:
    with _quiet():
        try:
            opened = kind.from_pretrained(checkpoint.path, local_files_only=True, trust_remote_code=False)
        except Exception as error:  # whatever its many readers raise for files that they were not made for
            raise Unreadable(" ".join(str(error).split())[:300] or repr(error)) from error
    if getattr(opened, "backend_tokenizer", None) is None:
        raise Unreadable(f"{type(opened).__name__} is written in Python, with no form that tokenizer.json could hold")
    opened.backend_tokenizer.no_truncation()
    opened.backend_tokenizer.no_padding()
    return opened


def _check_vocabulary(opened: Any, checkpoint: Checkpoint) -> None:
    """A class that does not know the files makes a tokenizer of nothing but special tokens."""
    stored = checkpoint.path / "vocab.json"
    if stored.is_file():
        vocabulary = json.loads(stored.read_text(encoding="utf-8"))
        known = opened.get_vocab()
        lost = [token for token, number in vocabulary.items() if known.get(token) != number]
        if lost:
            raise Unreadable(f"{type(opened).__name__} loses {len(lost)} tokens of vocab.json, such as {lost[0]!r}")
    if len(opened) < len(opened.all_special_tokens) + LEAST:
        raise Unreadable(f"{type(opened).__name__} finds no vocabulary in them")


def _is_sentencepiece(path: Path) -> bool:
    """Rather than one of tiktoken, whose lines are text: a model begins with the field of a piece."""
    if path.suffix not in SENTENCEPIECE:
        return False
    with path.open("rb") as file:
        return file.read(1) == b"\n"


def _open_sentencepiece(path: Path) -> Any:
    try:
        from sentencepiece import SentencePieceProcessor, sentencepiece_model_pb2  # noqa: F401  (transformers needs it)

        return SentencePieceProcessor(model_file=str(path))
    except ImportError as error:
        raise Unreadable(
            f"it needs sentencepiece, which is not installed: pip install sentencepiece ({error})"
        ) from error
    except Exception as error:  # of protobuf, in versions that do not fit; of the library, for a damaged file
        raise Unreadable(" ".join(str(error).split())[:300]) from error


def _differing(backend: LibraryTokenizer, original: Any, texts: Sequence[str]) -> list[str]:
    """The texts that are encoded otherwise than by the sentencepiece model, with the ids."""
    wrong = []
    for text in texts:
        ids, wanted = backend.encode(text, add_special_tokens=False).ids, original.encode(text)
        if ids != wanted:
            wrong.append(f"{text!r} is {ids}, there {wanted}")
    return wrong


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' own remarks, for what matters is told by us with what follows; and without tiktoken's
    cache, which knows files by their names and would give the contents of an earlier one."""
    from transformers.utils import logging

    verbosity, cache = logging.get_verbosity(), os.environ.get(CACHE)
    logging.set_verbosity(logging.CRITICAL)
    os.environ[CACHE] = ""
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        os.environ.pop(CACHE)
        if cache is not None:
            os.environ[CACHE] = cache
