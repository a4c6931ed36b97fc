"""Takes the text side out of the metadata of a GGUF file: the vocabulary, special tokens, the chat template."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tensorwright.models.gguf.gguf_file import GgufFile

TEMPLATE = "tokenizer.chat_template"
_FIELDS = {
    "model": "tokenizer_type",
    "pre": "pre_tokenizer_type",
    "tokens": "tokens",
    "scores": "scores",
    "token_type": "token_type",
    "merges": "merges",
    "bos_token_id": "bos_token_id",
    "eos_token_id": "eos_token_id",
    "unknown_token_id": "unk_token_id",
    "padding_token_id": "pad_token_id",
    "add_space_prefix": "add_prefix_space",
}
"""The keys of tokenizer.ggml, and what transformers' convert_gguf_tokenizer calls them."""
_SPECIAL = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}


def tokenizer_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Returns tokenizer_config.json: special tokens, whether they begin and end a text, and the chat template.

    A file without a vocabulary gives {}. Named templates become a named list.
    """
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or metadata.get("tokenizer.ggml.model") in (None, "no_vocab"):
        return {}
    config: dict[str, Any] = {}
    for name, key in _SPECIAL.items():
        number = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if isinstance(number, int) and 0 <= number < len(tokens):
            config[name] = tokens[number]
    begins = metadata.get("tokenizer.ggml.model") == "llama"  # llama.cpp's default for sentencepiece's vocabularies
    config["add_bos_token"] = bool(metadata.get("tokenizer.ggml.add_bos_token", begins))
    config["add_eos_token"] = bool(metadata.get("tokenizer.ggml.add_eos_token", False))
    templates = {"default": metadata.get(TEMPLATE)}
    templates |= {
        key.removeprefix(f"{TEMPLATE}."): text for key, text in metadata.items() if key.startswith(f"{TEMPLATE}.")
    }
    found = {name: text for name, text in templates.items() if isinstance(text, str)}
    if len(found) == 1 and "default" in found:
        config["chat_template"] = found["default"]
    elif found:
        config["chat_template"] = [{"name": name, "template": text} for name, text in found.items()]
    return config


def read_vocabulary(path: Path) -> tuple[str, dict[str, Any]]:
    """Returns the architecture and the vocabulary of a file, as transformers' convert_gguf_tokenizer takes them.

    Raises CheckpointError for lists of different lengths, and for numbers of tokens that do not exist.
    """
    file = GgufFile(path)
    found = {ours: file.metadata.get(f"tokenizer.ggml.{theirs}") for theirs, ours in _FIELDS.items()}
    vocabulary = {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in found.items()
        if value is not None
    }
    tokens = vocabulary.get("tokens")
    for name in ("tokens", "scores", "token_type", "merges"):
        value = vocabulary.get(name, [])
        if not isinstance(value, list) or (
            name in ("scores", "token_type") and value and len(value) != len(tokens or ())
        ):
            raise file.error(f"tokenizer.ggml.{name} must be a list for {len(tokens or ())} tokens")
    for name, value in vocabulary.items():
        if name.endswith("_token_id") and not (isinstance(value, int) and 0 <= value < len(tokens or ())):
            raise file.error(f"tokenizer.ggml: {name} must be one of {len(tokens or ())} tokens, not {value!r:.100}")
    return str(file.metadata.get("general.architecture")), vocabulary
