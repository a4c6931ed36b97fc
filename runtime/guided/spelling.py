"""Finds what llguidance must know of a tokenizer: the bytes of each token, and the tokens that spell a text.

No function holds the interpreter's lock for long: it reads tokens one by one, and joins some thousand at a time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

from tensorwright.runtime.text.tokenizer_parts import byte_alphabet, component_state, sequence_parts

AT_ONCE = 2048  # the number of tokens whose bytes are joined at once
SPECIAL = b"\xff"  # llguidance's mark before the bytes of a token that is not text
NO_BYTE = "\U0010ffff"  # replaces a letter that spells no byte

Speller = Callable[[str], bytes]


def token_bytes(tokenizer: tokenizers.Tokenizer, size: int) -> tuple[NDArray[np.uint32], bytearray]:
    """Returns the lengths [size] and the joined bytes of the tokens 0 to size - 1. Unknown ids have no bytes.

    Raises ValueError for a tokenizer whose tokens are neither bytes nor texts with byte fallback.
    """
    spell = _speller(tokenizer)
    added = _added(tokenizer)
    lengths = np.zeros(size, dtype=np.uint32)
    data = bytearray()
    for start in range(0, size, AT_ONCE):
        part = [_spelled(tokenizer, spell, added, token) for token in range(start, min(start + AT_ONCE, size))]
        lengths[start : start + len(part)] = [len(each) for each in part]
        data += b"".join(part)
    return lengths, data


def _spelled(tokenizer: tokenizers.Tokenizer, spell: Speller, added: dict[int, bytes], token: int) -> bytes:
    if token in added:
        return added[token]
    name = tokenizer.id_to_token(token)
    return b"" if name is None else spell(name)


def _added(tokenizer: tokenizers.Tokenizer) -> dict[int, bytes]:
    """Returns {id: bytes} of the added tokens. A token that looks like a tag counts as special, as in llguidance."""
    return {
        token: (SPECIAL if _is_special(entry) else b"") + entry.content.encode()
        for token, entry in tokenizer.get_added_tokens_decoder().items()
    }


def marker_ids(tokenizer: tokenizers.Tokenizer, markers: Iterable[str]) -> dict[str, int]:
    """Returns the ids of those markers that are one token which a grammar must name, for no text can spell it."""
    added = tokenizer.get_added_tokens_decoder()
    ids = {entry.content: token for token, entry in added.items() if _is_special(entry)}
    return {marker: ids[marker] for marker in markers if marker in ids}


def _is_special(entry: tokenizers.AddedToken) -> bool:
    return entry.special or (entry.content.startswith("<") and entry.content.endswith(">"))


def _speller(tokenizer: tokenizers.Tokenizer) -> Speller:
    """Returns the function from a token's spelling in the vocabulary to its bytes; a wrong spelling has no bytes.

    Raises ValueError for a tokenizer whose tokens do not spell bytes.
    """
    decoders = list(sequence_parts(component_state(tokenizer.decoder), "decoders"))
    kinds = [decoder["type"] for decoder in decoders]
    if "ByteFallback" in kinds:
        replaced = [part for part in decoders if part["type"] == "Replace" and part["content"] == " "]
        space = replaced[-1]["pattern"].get("String", " ") if replaced else " "
        return lambda name: _byte_or_text(name, space)
    if "ByteLevel" in kinds:
        letters = dict.fromkeys(range(256), NO_BYTE)
        letters |= {ord(letter): chr(byte) for letter, byte in byte_alphabet().items()}
        return lambda name: _all_bytes(name.translate(letters))
    raise ValueError(f"its tokens are not spelled in bytes: its decoder is {' and '.join(kinds) or 'none'}")


def _byte_or_text(name: str, space: str) -> bytes:
    if len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
        try:
            return bytes.fromhex(name[3:5])
        except ValueError:
            return b""
    return name.replace(space, " ").encode()


def _all_bytes(translated: str) -> bytes:
    try:
        return translated.encode("latin-1")
    except UnicodeEncodeError:
        return b""


def text_tokenizer(tokenizer: tokenizers.Tokenizer) -> Callable[[str], list[int]]:
    """Returns the function from a text in the middle of another text to the model's token ids for it.

    The function adds no special tokens and puts no blank before the text. It shares the tokenizer's vocabulary.
    """
    bare = tokenizers.Tokenizer(tokenizer.model)
    if tokenizer.normalizer is not None:
        bare.normalizer = _without_prepend(tokenizer.normalizer)
    if tokenizer.pre_tokenizer is not None:
        bare.pre_tokenizer = _without_prefix(tokenizer.pre_tokenizer)
    added = tokenizer.get_added_tokens_decoder().items()
    texts = {token: entry for token, entry in sorted(added) if not _is_special(entry)}
    bare.add_tokens(list(texts.values()))
    moved = {bare.token_to_id(entry.content): token for token, entry in texts.items()}

    def tokenize(text: str) -> list[int]:
        return [moved.get(token, token) for token in bare.encode(text, add_special_tokens=False).ids]

    return tokenize


def _without_prepend(normalizer: Any) -> Any:
    state = component_state(normalizer)
    if not any(part["type"] == "Prepend" for part in sequence_parts(state, "normalizers")):
        return normalizer
    kept = [part for part in sequence_parts(state, "normalizers") if part["type"] != "Prepend"]
    return _restored(tokenizers.normalizers.Sequence([]), {"type": "Sequence", "normalizers": kept})


def _without_prefix(pre_tokenizer: Any) -> Any:
    parts = list(sequence_parts(component_state(pre_tokenizer), "pretokenizers"))
    if not any(part["type"] == "Metaspace" for part in parts):
        return pre_tokenizer
    changed = [{**part, "prepend_scheme": "never"} if part["type"] == "Metaspace" else part for part in parts]
    return _restored(tokenizers.pre_tokenizers.Sequence([]), {"type": "Sequence", "pretokenizers": changed})


def _restored(component: Any, state: dict[str, Any]) -> Any:
    component.__setstate__(json.dumps(state).encode())
    return component
