"""Bounds how much text one token can stand for, so that a text that cannot fit is refused before it is encoded.

The bound is derived from the steps that a tokenizer declares. If a step may leave out any amount of text (for example
if an unknown word becomes one token, or a pattern removes text), there is no bound.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import tokenizers

from tensorwright.runtime.text.tokenizer_parts import byte_alphabet, component_state, sequence_parts

COMPOSED, COMPOSED_PER_BYTE = 4, 2
"""The most characters that NFC composes into one; and the most per byte of the composed character, which is 3
characters for two bytes and 4 for three."""
BLANKS = "".join(character for character in map(chr, range(0x3001)) if character.isspace())
"""The characters that Unicode calls white space, and a few more."""
KEEPING_NORMALIZERS = {"NFD", "NFKD", "Lowercase", "Prepend", "ByteLevel"}
KEEPING_SPLITTERS = {"ByteLevel", "Metaspace", "Digits", "UnicodeScripts", "FixedLength"}
BLANK_SPLITTERS = {"WhitespaceSplit", "Whitespace", "BertPreTokenizer"}


@dataclass(frozen=True)
class TokenSpan:
    """A bound on the text that one token stands for.

    characters: the most characters of a text that one token stands for.
    blanks: whether `characters` counts blanks too; if not, the tokenizer may drop any number of blanks.
    """

    characters: int
    blanks: bool

    def least_tokens(self, text: str) -> int:
        """Returns a lower bound: no encoding of the text has fewer tokens."""
        size = len(text)
        if not self.blanks:
            size -= sum(text.count(blank) for blank in BLANKS)
        return -(-size // self.characters)


class _Unbounded(Exception):
    """Raised where there is no bound. Its text says why."""


def token_span(tokenizer: tokenizers.Tokenizer) -> TokenSpan | str:
    """Returns the bound, or a text that says why there is none. It takes some microseconds per token of the vocabulary;
    other threads can run meanwhile."""
    try:
        factor, blanks = _normalized(tokenizer, COMPOSED_PER_BYTE if _in_bytes(tokenizer) else COMPOSED)
        blanks &= _split(tokenizer)
        _check_model(tokenizer)
        added = tokenizer.get_added_tokens_decoder().values()
        blanks &= not any(token.lstrip or token.rstrip for token in added)
        longest = max(_longest_entry(tokenizer), *(len(token.content) for token in added), 1)
    except _Unbounded as why:
        return str(why)
    return TokenSpan(longest * factor, blanks)


def _in_bytes(tokenizer: tokenizers.Tokenizer) -> bool:
    """Whether the entries of the vocabulary spell each byte as a letter."""
    return '"ByteLevel"' in json.dumps(
        [component_state(tokenizer.pre_tokenizer), component_state(tokenizer.normalizer)]
    )


def _normalized(tokenizer: tokenizers.Tokenizer, composed: int) -> tuple[int, bool]:
    """Returns how many characters may become one letter of the vocabulary, and whether all blanks stay.

    composed: the most characters that NFC composes into one such letter.
    """
    factor, blanks = 1, True
    for part in sequence_parts(component_state(tokenizer.normalizer), "normalizers"):
        kind = part["type"]
        if kind in ("NFC", "NFKC"):
            factor *= composed
        elif kind == "Strip":
            blanks = False
        elif kind == "Replace":
            factor *= _shrinking(part)
        elif kind not in KEEPING_NORMALIZERS:
            raise _Unbounded(f"its normalizer {kind} may leave out any amount of text")
    return factor, blanks


def _shrinking(replace: dict[str, Any]) -> int:
    found, instead = replace["pattern"].get("String"), replace["content"]
    if not found or not instead:
        raise _Unbounded("its normalizer Replace may leave out any amount of text")
    return -(-len(found) // len(instead))


def _split(tokenizer: tokenizers.Tokenizer) -> bool:
    """Whether the pre-tokenizer keeps all blanks. Raises _Unbounded if it may leave out any amount of text."""
    blanks = True
    for part in sequence_parts(component_state(tokenizer.pre_tokenizer), "pretokenizers"):
        kind = part["type"]
        if kind in BLANK_SPLITTERS:
            blanks = False
        elif kind not in KEEPING_SPLITTERS and part.get("behavior", "Removed") == "Removed":
            raise _Unbounded(f"its pre-tokenizer {kind} may leave out any amount of text")
    return blanks


def _check_model(tokenizer: tokenizers.Tokenizer) -> None:
    """Raises _Unbounded if characters that the vocabulary lacks become one token together, or no token."""
    model = tokenizer.model
    if not isinstance(model, (tokenizers.models.BPE, tokenizers.models.Unigram)):
        raise _Unbounded(f"its model {type(model).__name__} makes one token of any unknown word")
    if _all_bytes_known(tokenizer):
        return
    if isinstance(model, tokenizers.models.Unigram) or model.fuse_unk or model.unk_token is None:
        raise _Unbounded("its model makes one token, or none, of any number of unknown characters")


def _all_bytes_known(tokenizer: tokenizers.Tokenizer) -> bool:
    model = tokenizer.model
    if getattr(model, "continuing_subword_prefix", None) or getattr(model, "end_of_word_suffix", None):
        return False  # with prefixes and suffixes, an entry alone does not show where in a word it may stand
    if _in_bytes(tokenizer):
        return all(tokenizer.token_to_id(letter) is not None for letter in byte_alphabet())
    return getattr(model, "byte_fallback", False) and all(
        tokenizer.token_to_id(f"<0x{byte:02X}>") is not None
        or (byte < 128 and tokenizer.token_to_id(chr(byte)) is not None)
        for byte in range(256)
    )


def _longest_entry(tokenizer: tokenizers.Tokenizer) -> int:
    """Returns the length of the longest entry of the vocabulary. It reads the entries one by one, because reading all
    at once would block every other thread."""
    size, longest, missing = tokenizer.get_vocab_size(with_added_tokens=True), 0, False
    for token in range(size):
        entry = tokenizer.id_to_token(token)
        if entry is None:
            missing = True
        elif len(entry) > longest:
            longest = len(entry)
    if missing:  # the ids have gaps, so some ids are above `size`, or two entries have one id
        entries = tokenizer.get_vocab(with_added_tokens=True)
        if len({*entries.values()}) < len(entries):  # if two entries have one id, merges may go on without end
            raise _Unbounded("two entries of its vocabulary have one id")
        longest = max(map(len, entries))
    return longest
