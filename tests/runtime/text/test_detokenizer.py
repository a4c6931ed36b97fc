"""Incremental detokenisation: the pieces joined are the whole, and no piece holds half a character."""

from __future__ import annotations

from itertools import chain
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tensorwright.runtime.requests.completion_state import logprob_table
from tensorwright.runtime.text import detokenizer
from tensorwright.runtime.text.detokenizer import REPLACEMENT, IncrementalDetokenizer
from tensorwright.runtime.text.tokenizer import Tokenizer as EngineTokenizer
from tensorwright.runtime.text.tokenizer_parts import byte_alphabet

TEXTS = [
    "plain words",
    "naïve café",
    "日本語のテキスト",
    "👩\u200d👩\u200d👧\u200d👦 family 🏳\ufe0f\u200d🌈",
    "tabs\tand\n\nlines",
    " lead",
    "  two",
    "a€b𝄞c",
]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def byte_level() -> EngineTokenizer:
    """Every byte is a token, so every character outside ASCII is split; two merges and two special tokens beside."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: index for index, letter in enumerate(letters)}
    vocab |= {"th": 256, "Ġt": 257}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[("t", "h"), ("Ġ", "t")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>", "<pad>"])
    tokenizer.add_tokens([AddedToken("<tool>", special=False)])
    return EngineTokenizer(tokenizer)


def sentencepiece(decoder: decoders.Decoder) -> EngineTokenizer:
    """Like Llama 2: words carry a leading mark for the space, unknown characters fall back to byte tokens."""
    words = ["<unk>", "▁", "▁▁▁", "▁the", "▁cat", "s", "a", "t", "▁a", "e", ",", *BYTES]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={word: index for index, word in enumerate(words)}, merges=[], unk_token="<unk>", byte_fallback=True
        )
    )
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return EngineTokenizer(tokenizer)


def fallback_decoder() -> decoders.Decoder:
    return decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )


def empty_tokens() -> EngineTokenizer:
    """With a token whose text is empty."""
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "_": 1, "<unk>": 2}, unk_token="<unk>"))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("_", ""), decoders.Fuse()])
    return EngineTokenizer(tokenizer)


TOKENIZERS = {
    "byte_level": byte_level(),
    "sentencepiece": sentencepiece(fallback_decoder()),
    "metaspace": sentencepiece(decoders.Metaspace()),
    "empty": empty_tokens(),
}


def stream(tokenizer: EngineTokenizer, ids: list[int], skip: bool = True, chunk: int = 1) -> list[str]:
    made = IncrementalDetokenizer(tokenizer, skip)
    pieces = [made.push(ids[start : start + chunk]) for start in range(0, len(ids), chunk)]
    return [*pieces, made.flush()]


@pytest.mark.parametrize("text", TEXTS)
def test_valid_text_streams_without_a_broken_character(text: str) -> None:
    tokenizer = TOKENIZERS["byte_level"]
    pieces = stream(tokenizer, tokenizer.encode(text))
    assert "".join(pieces) == text
    assert not any(REPLACEMENT in piece for piece in pieces)
    assert pieces[-1] == ""  # nothing is held back once the last character is whole


def test_a_character_is_held_until_its_last_byte() -> None:
    tokenizer = TOKENIZERS["byte_level"]
    assert stream(tokenizer, tokenizer.encode("x🙂y")) == ["x", "", "", "", "🙂", "y", ""]


def test_flush_replaces_an_unfinished_character() -> None:
    tokenizer = TOKENIZERS["byte_level"]
    ids = tokenizer.encode("ok 🙂")[:-1]
    assert stream(tokenizer, ids)[-1] == REPLACEMENT
    assert "".join(stream(tokenizer, ids)) == tokenizer.decode(ids) == "ok " + REPLACEMENT


@pytest.mark.parametrize("name", ["sentencepiece", "metaspace"])
def test_only_the_first_leading_space_is_stripped(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    the, cat, end = (tokenizer._tokenizer.token_to_id(word) for word in ("▁the", "▁cat", "</s>"))
    assert stream(tokenizer, [the, cat, end, cat]) == ["the", " cat", "", " cat", ""]
    assert stream(tokenizer, [end, the, cat]) == ["", "the", " cat", ""]


def test_a_run_of_byte_tokens_waits_for_its_end() -> None:
    """The decoder replaces a whole run if any of it is invalid, so a piece given out early would be wrong."""
    tokenizer = TOKENIZERS["sentencepiece"]
    euro = [tokenizer._tokenizer.token_to_id(BYTES[byte]) for byte in "€".encode()]
    letter = tokenizer._tokenizer.token_to_id("a")
    assert stream(tokenizer, [*euro, letter]) == ["", "", "", "€a", ""]
    assert "".join(stream(tokenizer, [*euro, euro[0], letter])) == REPLACEMENT * 4 + "a"


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_pieces_join_to_the_whole(name: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[name]
    # Ids beyond the tokenizer's stand for a model whose vocabulary is padded.
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 1), max_size=60))
    skip = data.draw(st.booleans())
    chunk = data.draw(st.integers(1, 5))
    pieces = stream(tokenizer, ids, skip, chunk)
    assert "".join(pieces) == tokenizer.decode(ids, skip)


def long_runs(*garbage: bytes) -> st.SearchStrategy[list[int]]:
    """Ids of byte tokens that are UTF-8 mostly, words, special tokens and what is no token between them."""
    library = TOKENIZERS["sentencepiece"].library
    characters = st.sampled_from(["a", " ", "é", "€", "🙂", REPLACEMENT]).map(str.encode)
    runs = st.lists(st.one_of(characters, characters, st.sampled_from(garbage)), max_size=12).map(b"".join)
    words = [library.token_to_id(word) for word in ("▁", "▁the", "a", "</s>")]
    between = st.sampled_from([[], *([word] for word in words), [library.get_vocab_size()]])
    bytes_of = runs.map(lambda run: [library.token_to_id(BYTES[byte]) for byte in run])
    return st.lists(st.tuples(bytes_of, between), max_size=6).map(
        lambda parts: [*chain.from_iterable(map(chain.from_iterable, parts))]
    )


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_runs_that_are_decoded_in_pieces_join_to_the_whole(data: st.DataObject) -> None:
    """As if they were longer than a piece. Whatever was given out stays true."""
    tokenizer = TOKENIZERS["sentencepiece"]
    ids = data.draw(long_runs(b"\xff", b"\xe2", b"\x80", b"\xf0\x9f", b"\xed\xa0\x80"))
    skip = data.draw(st.booleans())
    with mock.patch.object(detokenizer, "PIECE", data.draw(st.integers(1, 5))):
        pieces = stream(tokenizer, ids, skip)
    assert "".join(pieces) == tokenizer.decode(ids, skip)


@pytest.mark.parametrize(("end", "certain"), [(b"", 0), (b"\xff", 0), (b"\xe2", 1), (b"\xe2a", 1)])
def test_the_end_of_a_long_run_costs_no_more_than_that_of_a_short_one(
    end: bytes, certain: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does any of its tokens. certain: the token after 20,000 from which on it is."""
    tokenizer = TOKENIZERS["sentencepiece"]
    ids = [tokenizer.library.token_to_id(BYTES[byte]) for byte in "é€🙂a".encode() * 2000 + end]
    ids += [tokenizer.library.token_to_id("a")] * 3
    sizes = count_decoded(monkeypatch)
    pieces = stream(tokenizer, ids)
    assert "".join(pieces) == tokenizer.decode(ids)
    assert max(sizes) <= 3 * detokenizer.PIECE
    assert sum(sizes) <= 4 * len(ids)
    assert next(number for number, piece in enumerate(pieces) if piece) == 20_000 + certain


@pytest.mark.parametrize("spelling", ["<0xc3>", "<0xC3>", "<0x+3>"])
def test_a_byte_token_is_what_the_library_takes_for_one(spelling: str) -> None:
    library = Tokenizer(models.BPE(vocab={"a": 0, spelling: 1, "<0x-3>": 2, "<0xA9>": 3}, merges=[]))
    library.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer = EngineTokenizer(library)
    assert [tokenizer.byte_of(token) for token in range(5)] == [None, int(spelling[3:5], 16), None, 0xA9, None]
    for ids in ([1, 3, 0], [1, 1, 3, 0], [1, 2, 3]):
        assert "".join(stream(tokenizer, ids)) == tokenizer.decode(ids)


@pytest.mark.parametrize("garbage", [b"\xe2", b"\x80", b"\xf0\x9f", b"a\xf0", b"\xc3\xff", b"\xf0\x9f\x99"])
def test_garbage_is_given_out_as_it_comes(garbage: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never more than a character's bytes are held back, and each step decodes a few tokens."""
    tokenizer = TOKENIZERS["byte_level"]
    library = tokenizer.library
    letters = {value: key for key, value in byte_alphabet().items()}
    tokens = [library.token_to_id(letters[byte]) for byte in garbage * 300]
    longest = count_decoded(monkeypatch)
    made, text = IncrementalDetokenizer(tokenizer), ""
    for number, token in enumerate(tokens):
        text += made.push([token])
        assert tokenizer.decode(tokens[: number + 1])[: len(text)] == text
        assert len(text) >= len(tokenizer.decode(tokens[: max(0, number - 3)])) - 1
    assert text + made.flush() == tokenizer.decode(tokens)
    assert max(longest) <= 8


def count_decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens of each text that a detokenizer decodes."""
    sizes: list[int] = []
    decode = IncrementalDetokenizer._decode

    def noted(self: IncrementalDetokenizer, ids: list[int]) -> str:
        sizes.append(len(ids))
        return decode(self, ids)

    monkeypatch.setattr(IncrementalDetokenizer, "_decode", noted)
    return sizes


ENDLESS = {
    "byte_level": [162],  # <0xE2>, of which no character comes
    "sentencepiece": [10 + 0xE3],  # <0xE2> likewise
    "metaspace": [10 + 0xE3],
    "empty": [1],
}


@pytest.mark.parametrize("name", ENDLESS)
def test_what_never_becomes_text_costs_linear_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = count_decoded(monkeypatch)
    tokens = ENDLESS[name] * 20_000
    pieces = stream(TOKENIZERS[name], tokens)
    assert "".join(pieces) == TOKENIZERS[name].decode(tokens)
    assert sum(sizes) < 20 * len(tokens)  # quadratic would be 10,000 times as many


def test_a_token_of_many_tables_is_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []
    whole = EngineTokenizer._token_text
    monkeypatch.setattr(EngineTokenizer, "_token_text", lambda self, token: decoded.append(token) or whole(self, token))
    tokenizer = byte_level()
    tables = [logprob_table([(token, -1.0, 1) for token in (256, 162, 256 + turn % 2)], tokenizer) for turn in range(9)]
    assert [table[256].decoded_token for table in tables] == ["th"] * 9
    assert sorted(decoded) == [162, 256, 257]
