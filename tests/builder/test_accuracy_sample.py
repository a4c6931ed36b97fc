"""What accuracy is measured on: windows of a text's tokens, what of them is predicted, and texts that are refused."""

from __future__ import annotations

import re
import shutil

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from support.fake_runtime import byte_tokenizer
from support.tiny_models import make_variant
from tensorwright import build
from tensorwright.builder.measure.sample import (
    FULL_TOKENS,
    Extent,
    bundled_text,
    longest_window,
    quick_tokens,
    random_sample,
    require_tokens,
    text_sample,
)
from tensorwright.errors import CheckpointError, InvalidOptionError, TensorwrightWarning
from tensorwright.options import text_file
from tensorwright.options.text_file import NamedText, read_text_file

TEXT = NamedText("a.txt", "naïve 日本 text, and more")


@pytest.fixture
def tokenizer(tmp_path):
    """One token for each byte, so that some characters are several tokens."""
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def with_prefix(tokenizer):
    library = Tokenizer.from_file(str(tokenizer))
    library.post_processor = TemplateProcessing(
        single="<end> <end> $A <end>", special_tokens=[("<end>", library.token_to_id("<end>"))]
    )
    library.save(str(tokenizer))
    return library.token_to_id("<end>")


@pytest.mark.parametrize(
    ("multiply_adds", "tokens"),
    [
        (10**7, 512),  # pico
        (494 * 10**6, 512),  # Qwen2.5-0.5B, whatever its vocabulary
        (1236 * 10**6, 207),  # Llama-3.2-1B
        (75 * 10**8, 128),  # Llama-3.1-8B
        (0, 512),
    ],
)
def test_quick_tokens(multiply_adds, tokens):
    """By the model's size alone: two builds must measure the same, whatever the machine does meanwhile."""
    assert quick_tokens(multiply_adds) == tokens


@pytest.mark.parametrize(("seen", "tokens"), [(None, 512), (100, 512), (260, 1040), (4100, 6148)])
def test_a_window_is_longer_than_what_attention_sees(seen, tokens):
    assert longest_window(seen) == tokens


def test_windows_lie_side_by_side(tokenizer):
    ids = byte_tokenizer().encode(TEXT.content).ids
    sample = text_sample(TEXT, tokenizer, Extent(21, 8), 257)
    assert [window.ids for window in sample.windows] == [ids[:8], ids[8:16], ids[16:21]]
    for window in sample.windows:
        assert window.targets == [*window.ids[1:], None]
    assert (sample.text, sample.text_xxh3_128) == ("a.txt", TEXT.xxh3_128)
    # "n" is not predicted, and neither are the first tokens of the other windows. A character of several tokens counts
    # with its first token: that of the second window's first token does not.
    ends = [offset[1] for offset in byte_tokenizer().encode(TEXT.content).offsets]
    scored = [TEXT.content[ends[a] : ends[b]] for a, b in ((0, 7), (8, 15), (16, 20))]
    assert scored[0] == "aïve 日"
    assert [window.characters for window in sample.windows] == [len(text) for text in scored]
    assert [window.bytes for window in sample.windows] == [len(text.encode()) for text in scored]


def test_every_window_begins_with_the_tokenizers_tokens(tokenizer):
    end = with_prefix(tokenizer)
    ids = byte_tokenizer().encode(TEXT.content).ids
    sample = text_sample(TEXT, tokenizer, Extent(18, 8), 257)
    assert [window.ids for window in sample.windows] == [
        [end, end, *ids[:6]], [end, end, *ids[6:12]],
    ]  # fmt: skip
    # All of a text's tokens are predicted, and the tokenizer's own are not.
    assert [window.targets for window in sample.windows] == [
        [None, *ids[:6], None], [None, *ids[6:12], None],
    ]  # fmt: skip
    first, second = sample.windows
    whole = byte_tokenizer().encode(TEXT.content).offsets[11][1]
    assert first.characters + second.characters == whole
    assert first.bytes + second.bytes == len(TEXT.content[:whole].encode())


@pytest.mark.parametrize("extent", [Extent(2, 8), Extent(8, 2)])
def test_a_window_has_room_for_a_token_of_the_text(tokenizer, extent):
    end = with_prefix(tokenizer)
    first = byte_tokenizer().encode(TEXT.content).ids[0]
    window = text_sample(TEXT, tokenizer, extent, 257).windows[0]
    assert (window.ids, window.targets) == ([end, first], [first, None])


def test_a_window_of_one_token_is_left_out(tokenizer):
    assert [len(w.ids) for w in text_sample(TEXT, tokenizer, Extent(9, 8), 257).windows] == [8]
    assert text_sample(TEXT, tokenizer, Extent(1, 8), 257).windows == []


def test_a_long_text_is_read_as_far_as_it_is_needed(tokenizer):
    long = NamedText("long", "word " * 10**5)
    assert sum(len(w.ids) for w in text_sample(long, tokenizer, Extent(40, 16), 257).windows) == 40
    library = Tokenizer.from_file(str(tokenizer))
    library.add_tokens(["word " * 40])  # one token of 200 characters
    library.enable_truncation(10)
    library.enable_padding(length=64)
    library.save(str(tokenizer))
    assert sum(len(w.ids) for w in text_sample(long, tokenizer, Extent(40, 16), 300).windows) == 40


def test_a_tokenizer_of_another_model(tokenizer):
    with pytest.raises(CheckpointError, match="gives token 220, but the model has a vocabulary of 150"):
        text_sample(NamedText("a", "an é"), tokenizer, Extent(9, 8), 150)


def test_random_tokens(tmp_path):
    sample = random_sample(Extent(40, 16), 7)
    assert [len(window.ids) for window in sample.windows] == [16, 16, 8]
    assert {token for window in sample.windows for token in window.ids} <= set(range(7))
    assert sample == random_sample(Extent(40, 16), 7)
    assert (sample.text, sample.text_xxh3_128) == ("random token ids", None)
    assert all(window.characters == 0 for window in sample.windows)


def test_the_bundled_text_is_long_enough_for_every_vocabulary():
    """No usual tokenizer joins words, or a word and punctuation, so a text has at least as many tokens as these."""
    pieces = re.findall(r"\w+|[^\s\w]+", bundled_text().content)
    assert len(pieces) >= FULL_TOKENS


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (None, "is no file"),
        (b"", "holds no text"),
        (b" \n", "holds no text"),
        (b"caf\xe9", "must be UTF-8 text"),
        (b"word " * 21, "is larger than 100 bytes"),
    ],
)
@pytest.mark.parametrize(
    "options", [{"accuracy_text": None}, {"calibration_text": None, "calibrate": "gptq", "quantize": "int4"}]
)
def test_texts_that_are_refused(tmp_path, monkeypatch, data, words, options):
    """They are refused before the model is opened."""
    name = next(iter(options))
    if data is not None:
        (tmp_path / "t.txt").write_bytes(data)
    monkeypatch.setattr(text_file, "MAX_BYTES", 100)
    with pytest.raises(InvalidOptionError, match=f"{name}: .*{words}"):
        build(tmp_path / "no model", tmp_path / "out", **{**options, name: tmp_path / "t.txt"})


def test_a_byte_order_mark_is_no_text(tmp_path):
    (tmp_path / "t.txt").write_bytes(b"\xef\xbb\xbfwords")
    assert read_text_file("accuracy_text", str(tmp_path / "t.txt")) == NamedText("t.txt", "words")


def test_a_text_that_is_too_short(tokenizer):
    require_tokens(NamedText("t", "four"), tokenizer, 4)
    with pytest.raises(InvalidOptionError, match=r"t has 4 tokens of this model, and 5 must be measured"):
        require_tokens(NamedText("t", "four"), tokenizer, 5)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return make_variant(tmp_path_factory.mktemp("tiny") / "m", "llama")


def test_a_build_measures_a_users_text(tiny, tmp_path, monkeypatch):
    text = tmp_path / "mine.txt"
    text.write_text(" ".join(f"t{i % 90}" for i in range(400)))
    with pytest.raises(InvalidOptionError, match=r"mine.txt has 400 tokens of this model, and 401 must be measured"):
        build(tiny, tmp_path / "out", accuracy_text=text, accuracy_tokens=401)
    assert not (tmp_path / "out").exists()
    told = []
    result = build(
        tiny, tmp_path / "out", accuracy_text=text, accuracy_tokens=300,
        progress=lambda phase, done, total: told.append((done, total)) if phase == "accuracy" else None,
    )  # fmt: skip
    record = result.config["accuracy"]
    assert (record["text"], record["windows"], record["tokens"]) == ("mine.txt", 3, 300)  # of at most 128 tokens
    assert record["text_xxh3_128"] == read_text_file("accuracy_text", str(text)).xxh3_128
    scored = [i for i in range(300) if i % 128]
    assert record["bytes"] == record["characters"] == sum(len(f" t{i % 90}") for i in scored)
    bits = np.log2(record["perplexity_engine"]) * len(scored)
    assert record["bits_per_byte_engine"] == pytest.approx(bits / record["bytes"], rel=1e-4)
    assert result.config["build_options"]["accuracy_tokens"] == 300
    assert "accuracy_text" not in result.config["build_options"]
    assert told[0] == (0, 0)
    assert told[1:] == sorted(told[1:])
    assert told[-1] == (3000, 3000)
    assert len(told) > 100


def test_options_of_a_measurement_that_is_none(tiny, tmp_path):
    for options in ({"accuracy_tokens": 64}, {"accuracy_text": "a.txt"}):
        with pytest.raises(InvalidOptionError, match="is for a measurement, and accuracy is none"):
            build(tiny, tmp_path / "out", accuracy="none", **options)


def test_a_text_without_a_tokenizer(tiny, tmp_path):
    bare = shutil.copytree(tiny, tmp_path / "bare", ignore=shutil.ignore_patterns("tokenizer*"))
    (tmp_path / "t.txt").write_text("words")
    with (
        pytest.warns(TensorwrightWarning),
        pytest.raises(InvalidOptionError, match="accuracy_text: the model has no tokenizer"),
    ):
        build(bare, tmp_path / "out", accuracy_text=tmp_path / "t.txt")
