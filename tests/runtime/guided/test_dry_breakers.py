"""The spellings of DRY's sequence breakers: those that llama.cpp finds, token by token."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer as LibraryTokenizer

from tensorwright.runtime.guided.dry_breakers import spell_breakers
from tensorwright.runtime.guided.spelling import token_bytes
from tensorwright.runtime.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(pico_model: Path) -> Tokenizer:
    return Tokenizer(LibraryTokenizer.from_file(str(pico_model / "tokenizer.json")))


def found_one_by_one(tokenizer: Tokenizer, breaker: str) -> dict[tuple[int, ...], set[int]]:
    """{tail: heads}, from the text of each token."""
    lengths, joined = token_bytes(tokenizer.library, tokenizer.vocab_size)
    text, start, heads = breaker.encode(), 0, {}  # type: ignore[var-annotated]
    for token, length in enumerate(lengths.tolist()):
        word = bytes(joined[start : start + length])
        start += length
        if text in word:
            heads.setdefault((), set()).add(token)
            continue
        for cut in range(1, len(text)):
            try:
                rest = text[cut:].decode()
            except UnicodeDecodeError:
                continue
            if word.endswith(text[:cut]):
                heads.setdefault(tuple(tokenizer.encode(rest, add_special_tokens=False)), set()).add(token)
    return heads


@pytest.mark.parametrize("breaker", ["\n", ":", " ", "):\n", "self.", "aaaa", "é", "naïve é", "x" * 40])
def test_spellings_are_those_of_each_token(tokenizer: Tokenizer, breaker: str) -> None:
    spelled = spell_breakers(tokenizer, [breaker])
    assert {tuple(tail): set(heads) for tail, heads in spelled.spellings} == found_one_by_one(tokenizer, breaker)


def test_requests_with_the_same_breakers_share_them(tokenizer: Tokenizer) -> None:
    first = spell_breakers(tokenizer, ["\n", ":"])
    assert spell_breakers(tokenizer, ("\n", ":")) is first
    assert first.native is first.native
    assert spell_breakers(tokenizer, [":"]) is not first
