"""Writes the engine's text side: tokenizer, its special tokens, chat templates, generation_config.json.

transformers converts the older files of a checkpoint that has no tokenizer.json. A missing tokenizer fails no build:
what the engine then cannot do, or does otherwise than transformers, is a TensorwrightWarning and in build-report.json.
"""

from __future__ import annotations

import warnings
from typing import Any

from tokenizers import Tokenizer as LibraryTokenizer

from tensorwright.builder.emit.engine_dir import EngineWriter
from tensorwright.builder.emit.transformers_tokenizer import Reference, Unreadable, convert, load
from tensorwright.engine_format.file_names import GENERATION_CONFIG, SPECIAL_TOKENS_MAP, TOKENIZER, TOKENIZER_CONFIG
from tensorwright.engine_format.template_files import template_file
from tensorwright.errors import TensorwrightWarning
from tensorwright.models.checkpoint import Checkpoint
from tensorwright.runtime.text.special_tokens import named_tokens, special_tokens
from tensorwright.runtime.text.tokenizer import Tokenizer

CONSEQUENCE = (
    "the engine takes and gives token ids only, and tensorwright serve refuses it; put a tokenizer.json beside the "
    "weights and build again"
)
SHOWN = 3  # the most differences in a warning; the report has all

TEXTS = (
    "", " ", " leading", "  two leading", "\n\nlines\n", "\ttab", "trailing ", "a  b   c", "<b>&amp;</b>",
    "Hello, world! It's 1234567.89", "def f(x):\n    return x[0] ** 2  # note\n",
    "naïve café 日本語 Ελληνικά 👩\u200d👩\u200d👧", "e\u0301 \ufb01 \uff21",
)  # fmt: skip
"""Texts that both tokenizers encode, together with one text for each special token."""


def write_text_side(writer: EngineWriter, checkpoint: Checkpoint) -> dict[str, Any]:
    """Writes the files. Returns the tokenizer's entry of build-report.json: "source", the files that it is made of,
    empty without a tokenizer; "warnings", texts; "differences" from transformers, each with text, ids,
    transformers_ids."""
    for path in (checkpoint.path / TOKENIZER_CONFIG, checkpoint.path / GENERATION_CONFIG):
        if path.is_file():
            writer.write(path.name, path.read_bytes())
    if checkpoint.gguf is not None:
        _write_metadata(writer, checkpoint)
    for name, text in checkpoint.chat_templates.items():
        writer.write(template_file(name), text.encode())
    record = _copy(writer, checkpoint) if checkpoint.is_engine else _write_tokenizer(writer, checkpoint)
    for message in record["warnings"]:
        warnings.warn(TensorwrightWarning(f"{checkpoint.path}: {message}"), stacklevel=2)
    return record


def _write_metadata(writer: EngineWriter, checkpoint: Checkpoint) -> None:
    """Writes what a GGUF file says of special tokens and of the ends of texts, as files. Templates have their own."""
    config = {name: value for name, value in checkpoint.tokenizer_config.items() if name != "chat_template"}
    for name, content in ((TOKENIZER_CONFIG, config), (GENERATION_CONFIG, checkpoint.generation_config)):
        if content:
            writer.write_json(name, content)


def _record(*source: str) -> dict[str, Any]:
    return {"source": list(source), "warnings": [], "differences": []}


def _copy(writer: EngineWriter, engine: Checkpoint) -> dict[str, Any]:
    """Copies the finished files of an engine that is built again."""
    files = [engine.tokenizer_files[name] for name in (TOKENIZER, SPECIAL_TOKENS_MAP) if name in engine.tokenizer_files]
    for path in files:
        writer.write(path.name, path.read_bytes())
    return _record(*(path.name for path in files if path.name == TOKENIZER))


def _write_tokenizer(writer: EngineWriter, checkpoint: Checkpoint) -> dict[str, Any]:
    own = checkpoint.tokenizer_files.get(TOKENIZER)
    older = [path.name for path in checkpoint.older_tokenizer_files]
    record = _record(*([TOKENIZER] if own is not None else older))
    reference: Reference | None = None
    try:
        if own is not None:
            reference = load(checkpoint)
        elif older:
            reference = convert(checkpoint, TEXTS)
    except Unreadable as error:
        record["warnings"].append(
            f"the tokenizer is not compared with transformers', which cannot read it: {error}"
            if own is not None
            else f"no tokenizer.json, and {', '.join(older)} cannot be converted: {error}; so {CONSEQUENCE}"
        )
    if own is None and reference is None:
        record["source"] = []
        if not older:
            record["warnings"].append(f"no tokenizer: {CONSEQUENCE}")
        return record
    data = own.read_bytes() if own is not None else reference.tokenizer_json()  # type: ignore[union-attr]
    writer.write(TOKENIZER, data)
    tokenizer = checkpoint.take_tokenizer() or LibraryTokenizer.from_str(data.decode())
    special = _special_map(checkpoint, tokenizer, reference)
    if special:
        writer.write_json(SPECIAL_TOKENS_MAP, special)
    if reference is not None:
        _compare(record, Tokenizer(tokenizer, special_tokens(checkpoint.tokenizer_config, special)), reference)
    return record


def _special_map(checkpoint: Checkpoint, tokenizer: LibraryTokenizer, reference: Reference | None) -> dict[str, Any]:
    """Returns special_tokens_map.json: the checkpoint's entries, and those that only transformers' tokenizer class
    names, such as Gemma's <mask>. Tokens that the vocabulary lacks are left out."""
    stored = checkpoint.special_tokens_map
    known = named_tokens(checkpoint.tokenizer_config, stored)
    more = {} if reference is None else reference.special_tokens()
    more = {name: text for name, text in more.items() if name not in known and tokenizer.token_to_id(text) is not None}
    return {**stored, **dict(sorted(more.items()))}


def _compare(record: dict[str, Any], tokenizer: Tokenizer, reference: Reference) -> None:
    """Records each text that the engine encodes otherwise than transformers, or than the files before conversion."""
    marked = sorted(set(reference.special_tokens().values()))
    for text in (*TEXTS, *(f"a{token} b" for token in marked)):
        ids, theirs = tokenizer.encode(text), reference.encode(text)
        if ids != theirs:
            record["differences"].append({"text": text, "ids": ids, "transformers_ids": theirs})
    if record["differences"]:
        shown = "; ".join(
            f"{each['text']!r} is {each['ids']}, there {each['transformers_ids']}"
            for each in record["differences"][:SHOWN]
        )
        record["warnings"].append(
            f"of {len(TEXTS) + len(marked)} texts, the engine, with tokenizer.json as the tokenizers library reads it, "
            f"encodes {len(record['differences'])} otherwise than {reference.name} of transformers: {shown}"
        )
    record["warnings"] += reference.faults
