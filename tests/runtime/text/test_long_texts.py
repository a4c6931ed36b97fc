"""Texts that are too long: refused before they are encoded; and what is encoded lets other threads go on."""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from support.fake_runtime import byte_tokenizer
from tensorwright import LLM, SamplingParams
from tensorwright.errors import InvalidRequestError, PromptTooLongError
from tensorwright.runtime.requests.prompts import MOST_TEXT
from tensorwright.runtime.text.token_span import TokenSpan, token_span
from tensorwright.runtime.text.tokenizer import PIECE
from tensorwright.runtime.text.tokenizer import Tokenizer as EngineTokenizer

MARK = "\u2581"
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
FILES = st.builds(
    lambda normalizer, splitter, model, added: made(normalizer, splitter, model, added),
    st.sampled_from(["none", "nfc", "nfkc", "spaces", "llama", "lower", "strip", "longer"]),
    st.sampled_from(["none", "bytes", "metaspace", "digits", "punctuation", "whitespace"]),
    st.sampled_from(["fallback", "unknown"]),
    st.booleans(),
)
PIECES = [
    *("a", "aa", "ab", " ", "   ", "\n", "1", ",", "é", "日", "🙂", "<m>", "\ufb03", "\ufdfa", "aaaaaaaa"),
    *("e\u0301", "u\u0308\u0304", "\u03b1\u0313\u0300\u0345", "\u1112\u1161\u11ab"),  # which NFC composes
]
TEXT = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)
NORMALIZERS: dict[str, Any] = {
    "none": None,
    "nfc": normalizers.NFC(),
    "nfkc": normalizers.Sequence([normalizers.NFKC(), normalizers.NFC()]),
    "spaces": normalizers.Replace(" ", MARK),
    "llama": normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)]),
    "lower": normalizers.Lowercase(),
    "strip": normalizers.Strip(),
    "longer": normalizers.Replace("aaa", "b"),
}
SPLITTERS: dict[str, Any] = {
    "none": None,
    "bytes": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "metaspace": pre_tokenizers.Metaspace(),
    "digits": pre_tokenizers.Sequence([pre_tokenizers.Digits(), pre_tokenizers.ByteLevel(add_prefix_space=False)]),
    "punctuation": pre_tokenizers.Punctuation(),
    "whitespace": pre_tokenizers.WhitespaceSplit(),
}


def made(normalizer: str, splitter: str, model: str, added: bool) -> Tokenizer:
    words = [
        "<unk>",
        *BYTES,
        *sorted(pre_tokenizers.ByteLevel.alphabet()),
        " ",
        MARK,
        "aa",
        "aaaa",
        MARK + "a",
        "é",
        "日",
    ]
    vocab = {word: number for number, word in enumerate(dict.fromkeys(words))}
    merges = [("a", "a"), ("aa", "aa"), (MARK, "a")]
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=model == "fallback"))
    if NORMALIZERS[normalizer] is not None:
        tokenizer.normalizer = NORMALIZERS[normalizer]
    if SPLITTERS[splitter] is not None:
        tokenizer.pre_tokenizer = SPLITTERS[splitter]
    if added:
        tokenizer.add_special_tokens([AddedToken("<m>", lstrip=True, rstrip=True)])
    return tokenizer


@settings(max_examples=300, deadline=None)
@given(FILES, TEXT, st.integers(1, 50))
def test_no_encoding_has_fewer_tokens(tokenizer: Tokenizer, text: str, times: int) -> None:
    span = token_span(tokenizer)
    assert isinstance(span, TokenSpan)
    assert span.least_tokens(text * times) <= len(tokenizer.encode(text * times, add_special_tokens=False))


def test_a_span_is_that_of_the_longest_entry() -> None:
    assert token_span(made("none", "bytes", "fallback", False)) == TokenSpan(6, True)  # <0x00>
    assert token_span(made("nfc", "bytes", "fallback", False)) == TokenSpan(12, True)
    assert token_span(made("nfc", "none", "fallback", False)) == TokenSpan(24, True)
    assert token_span(made("longer", "none", "fallback", True)) == TokenSpan(18, False)


def fused() -> Tokenizer:
    return Tokenizer(models.BPE({"a": 0, "<unk>": 1}, [], unk_token="<unk>", fuse_unk=True))


def removing(**parts: Any) -> Tokenizer:
    tokenizer = made("none", "none", "fallback", False)
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    return tokenizer


@pytest.mark.parametrize(
    ("tokenizer", "why"),
    [
        (fused(), "any number of unknown characters"),
        (Tokenizer(models.BPE({"a": 0}, [])), "any number of unknown characters"),
        (Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="b")), "its model WordLevel"),
        (removing(normalizer=normalizers.StripAccents()), "its normalizer StripAccents"),
        (removing(normalizer=normalizers.Replace("a", "")), "its normalizer Replace"),
        (removing(pre_tokenizer=pre_tokenizers.Split("a", "removed")), "its pre-tokenizer Split"),
        (removing(pre_tokenizer=pre_tokenizers.CharDelimiterSplit("a")), "its pre-tokenizer CharDelimiterSplit"),
    ],
)
def test_what_may_leave_out_any_amount_of_text_has_no_span(tokenizer: Tokenizer, why: str) -> None:
    assert why in str(token_span(tokenizer))
    assert EngineTokenizer(tokenizer).least_tokens("a" * 1000) == 0


def test_entries_beyond_a_gap_of_ids_count() -> None:
    raw = json.loads(byte_tokenizer().to_str())
    raw["model"]["vocab"]["x" * 30] = 100_000
    span = token_span(Tokenizer.from_str(json.dumps(raw)))
    assert isinstance(span, TokenSpan)
    assert span.characters == 30


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Characters of each text that the tokenizer library is given."""
    seen: list[int] = []
    encode = EngineTokenizer._encoding

    def noted(self: EngineTokenizer, text: str, add_special_tokens: bool) -> Any:
        seen.append(len(text))
        return encode(self, text, add_special_tokens)

    monkeypatch.setattr(EngineTokenizer, "_encoding", noted)
    return seen


@pytest.mark.parametrize("times", [1, 1000])
def test_what_cannot_fit_is_not_encoded(llm: LLM, encoded: list[int], times: int) -> None:
    assert llm.engine.tokenizer is not None
    fits = 128 * llm.engine.tokenizer.span.characters  # type: ignore[union-attr]
    with pytest.raises(PromptTooLongError, match=r"length is 128 tokens.*the prompt has at least 129"):
        llm.generate("a" * (fits + 1) if times == 1 else {"prompt": "a" * (fits + 1)})
    assert encoded == []
    with pytest.raises(PromptTooLongError, match=f"the prompt has about {fits} and"):
        llm.generate("a" * fits)  # each is a token here
    assert encoded == [fits]


def test_of_a_text_that_is_cut_there_may_be_more(llm: LLM, encoded: list[int]) -> None:
    params = SamplingParams(max_tokens=1, truncate_prompt_tokens=3)
    assert llm.generate("b" * 300 + "acd", params).prompt_token_ids == llm.tokenizer.encode("acd")
    encoded.clear()
    assert llm.engine.tokenizer is not None
    most = MOST_TEXT * 128 * llm.engine.tokenizer.span.characters  # type: ignore[union-attr]
    with pytest.raises(
        PromptTooLongError, match=f"at most {MOST_TEXT * 128} tokens to be tokenized, {MOST_TEXT} times"
    ):
        llm.generate("a" * (most + 1), params)
    assert encoded == []


def test_a_long_text_is_given_up_after_the_pieces_that_are_too_many() -> None:
    """And one that fits is encoded as a whole, wherever the pieces ended."""
    raw = json.loads(byte_tokenizer().to_str())
    raw["model"]["vocab"] |= {"aa": 300, "aaaa": 301}
    raw["model"]["merges"] = [["a", "a"], ["aa", "aa"]]
    tokenizer, seen = EngineTokenizer(Tokenizer.from_str(json.dumps(raw))), []
    encoding = tokenizer._encoding

    def noted(text: str, add_special_tokens: bool) -> Any:
        seen.append(len(text))
        return encoding(text, add_special_tokens)

    tokenizer._encoding = noted  # type: ignore[method-assign]
    assert tokenizer.encode_within("b" * (10 * PIECE), PIECE - 1) == 2 * PIECE
    assert seen == [PIECE, PIECE]
    text = "a" * (2 * PIECE + 4)
    assert tokenizer.encode_within(text, len(text)) == [301] * (PIECE // 2 + 1)
    assert tokenizer.encode_within(text, PIECE // 2) == PIECE // 2 + 1


def test_long_lists_of_ids_are_refused_by_their_length(llm: LLM) -> None:
    with pytest.raises(PromptTooLongError, match="the prompt has 200 and"):
        llm.generate({"prompt_token_ids": ["no token"] * 200})  # type: ignore[list-item]


@pytest.mark.parametrize("what", ["encode", "decode"])
def test_other_threads_go_on(what: str) -> None:
    """No switch is forced here, so another thread moves on only if the lock is let go of."""
    tokenizer = EngineTokenizer(byte_tokenizer())
    text = "ab c" * 50_000
    ids = tokenizer.encode(text)
    steps, ended = 0, threading.Event()

    def count() -> None:
        nonlocal steps
        while not ended.is_set():
            steps += 1
            time.sleep(0)  # hands the lock back

    counting = threading.Thread(target=count)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        counting.start()
        for _ in range(50):
            start = steps
            if what == "encode":
                tokenizer.encode(text)
            else:
                tokenizer.decode(ids)
            if steps > start:
                break
        else:
            pytest.fail("it never did")
    finally:
        sys.setswitchinterval(before)
        ended.set()
        counting.join()


@pytest.mark.parametrize("size", [1, 1000])
def test_a_text_that_the_tokenizer_has_no_tokens_for_is_refused(size: int) -> None:
    """The library raises the plain class of all errors."""
    words = EngineTokenizer(Tokenizer(models.WordLevel({"a": 0})))
    with pytest.raises(InvalidRequestError, match="has no tokens for 'b"):
        words.encode("b" * size)


def test_a_vocabulary_that_says_one_id_twice_has_no_bound() -> None:
    """Its merges are of ids: what "ab" became merges with the next "a" again."""
    model = models.BPE({"u": 0, "a": 0, "b": 3, "ab": 3}, [("a", "b")], unk_token="u")
    tokenizer = Tokenizer(model)
    assert len(tokenizer.encode("a" * 50 + "b").ids) == 1
    assert token_span(tokenizer) == "two entries of its vocabulary have one id"
