"""Reads a checkpoint's tokenizer by transformers, to compare with ours, and to convert a checkpoint that has only the
older files (a sentencepiece model, vocab.json and merges.txt, tiktoken's)."""

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
from tensorwright.models.gguf.vocabulary import read_vocabulary

SENTENCEPIECE = (".model", ".v1", ".v2", ".v3")
LEAST = 2  # the fewest tokens beside the special ones
CACHE = "TIKTOKEN_CACHE_DIR"
BLANK = "\u2581"  # sentencepiece writes a blank as this


class Unreadable(Exception):
    """There is no transformers tokenizer for a checkpoint; the text says why."""


@dataclass(frozen=True)
class Reference:
    """converted: the tokenizer made of the older files, if it differs from the class's own; None otherwise. faults:
    texts that say what is known to be wrong with it."""

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
        """Returns bos_token and the like -> the token's text, including those that only the class names."""
        return {name: str(text) for name, text in self.tokenizer.special_tokens_map.items() if isinstance(text, str)}

    def tokenizer_json(self) -> bytes:
        """Returns tokenizer.json, with the same bytes in every build."""
        return (self.converted or self.tokenizer.backend_tokenizer).to_str(pretty=True).encode()


def load(checkpoint: Checkpoint) -> Reference:
    """Opens the checkpoint's tokenizer. Raises Unreadable."""
    from transformers import AutoTokenizer

    return Reference(_open(AutoTokenizer, checkpoint))


def convert(checkpoint: Checkpoint, texts: Sequence[str]) -> Reference:
    """Converts the older files. Each possible form of a sentencepiece model encodes the texts; the form with the fewest
    texts that the model itself encodes otherwise is taken. Raises Unreadable."""
    if checkpoint.gguf is not None:
        return Reference(_open_gguf(checkpoint))
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
    """Yields Llama's class, then the form of Llama 2's published tokenizer.json, which puts a blank before each text;
    the class adds none to a text that begins with one."""
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
        except Exception as error:  # its many readers raise anything for files in other formats
            raise Unreadable(" ".join(str(error).split())[:300] or repr(error)) from error
    if getattr(opened, "backend_tokenizer", None) is None:
        raise Unreadable(f"{type(opened).__name__} is written in Python, with no form that tokenizer.json could hold")
    opened.backend_tokenizer.no_truncation()
    opened.backend_tokenizer.no_padding()
    return opened


def _open_gguf(checkpoint: Checkpoint) -> Any:
    """Makes the tokenizer of a GGUF file's vocabulary, as AutoTokenizer does with gguf_file."""
    from transformers import PreTrainedTokenizerFast

    try:
        from transformers.integrations.gguf import convert_gguf_tokenizer
    except ImportError as error:
        raise Unreadable(f"making a tokenizer of a GGUF file needs transformers 5.23 ({error})") from error
    architecture, vocabulary = read_vocabulary(checkpoint.path)
    special = {name: value for name, value in checkpoint.tokenizer_config.items() if name != "chat_template"}
    with _quiet():
        try:
            backend, more = convert_gguf_tokenizer(architecture, vocabulary)
            return PreTrainedTokenizerFast(tokenizer_object=backend, **special, **more)
        except Exception as error:  # its many builders raise anything for vocabularies of other forms
            raise Unreadable(" ".join(str(error).split())[:300] or repr(error)) from error


def _check_vocabulary(opened: Any, checkpoint: Checkpoint) -> None:
    """Raises Unreadable for a tokenizer of special tokens only: a class makes one from files that it does not know."""
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
    """Returns whether a file is a sentencepiece model, which begins with a piece's field. tiktoken's files are text."""
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
    except Exception as error:  # protobuf raises for versions that do not fit, the library for a damaged file
        raise Unreadable(" ".join(str(error).split())[:300]) from error


def _differing(backend: LibraryTokenizer, original: Any, texts: Sequence[str]) -> list[str]:
    """Returns the texts that are encoded otherwise than by the sentencepiece model, with the ids."""
    wrong = []
    for text in texts:
        ids, wanted = backend.encode(text, add_special_tokens=False).ids, original.encode(text)
        if ids != wanted:
            wrong.append(f"{text!r} is {ids}, there {wanted}")
    return wrong


@contextmanager
def _quiet() -> Iterator[None]:
    """Turns off transformers' own log lines, since our messages say what matters, and tiktoken's cache, which would
    give the contents of an earlier file of the same name."""
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
