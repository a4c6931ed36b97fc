"""Reading a vocabulary for guided decoding: as llguidance itself reads it, and nobody else waits for it."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from support.fake_runtime import FakeEngine, byte_tokenizer, write_engine
from support.places import ROOT
from support.waiting import PATIENCE, wait_until
from tensorwright import LLM, GuidedDecodingParams, SamplingParams
from tensorwright.errors import InvalidRequestError, MissingDependencyError
from tensorwright.runtime.guided import library, vocabulary
from tensorwright.runtime.guided.reader import VocabularyReader
from tensorwright.runtime.guided.spelling import text_tokenizer, token_bytes
from tensorwright.runtime.guided.vocabulary import GuidedVocabulary
from tensorwright.runtime.text.tokenizer import Tokenizer

TEXTS = ["def read(", '{"a": [1, 2.5]}', " leading", "two  blanks", "größe ☃", "\n\n\tx", "</s>", "<|tag|>", "  "]


def sentencepiece_like(prefix: Any) -> tokenizers.Tokenizer:
    """As Llama 2 and Gemma have it: words and bytes, and a blank before each text by `prefix`."""
    words = ["<unk>", "▁", "▁t", "h", "e", "▁th", "▁the", "l", "le", "a", *(f"<0x{byte:02X}>" for byte in range(256))]
    merges = [("▁", "t"), ("▁t", "h"), ("▁th", "e"), ("l", "e")]
    made = tokenizers.Tokenizer(
        models.BPE(vocab={word: at for at, word in enumerate([*words, "t"])}, merges=[*merges], byte_fallback=True)
    )
    if isinstance(prefix, normalizers.Normalizer):
        made.normalizer = prefix
    else:
        made.pre_tokenizer = prefix
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    made.add_special_tokens(["</s>"])
    made.add_tokens([AddedToken("  ", normalized=False), "<|tag|>", AddedToken("é\n", normalized=False)])
    return made


def with_added_tokens() -> tokenizers.Tokenizer:
    made = byte_tokenizer()
    made.add_tokens(["  ", "<|tag|>", "read"])
    made.add_special_tokens(["</s>"])
    return made


TOKENIZERS = {
    "pico": lambda: tokenizers.Tokenizer.from_file(str(ROOT / "models/pico/tokenizer.json")),
    "bytes": with_added_tokens,
    "prepend": lambda: sentencepiece_like(
        normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    ),
    "metaspace": lambda: sentencepiece_like(pre_tokenizers.Metaspace("▁", prepend_scheme="always", split=False)),
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_as_the_library_reads_tokenizer_json(name: str) -> None:
    """Its own reading takes longer and keeps the interpreter's lock, but it is what is meant."""
    tokenizer = TOKENIZERS[name]()
    size = tokenizer.get_vocab_size() + 3  # padded, as models' vocabularies are
    lengths, spelled = token_bytes(tokenizer, size)
    from llguidance import LLTokenizer

    expected = LLTokenizer(tokenizer.to_str(), n_vocab=size, eos_token=[0])
    ends = np.cumsum(lengths)
    for token, (start, end) in enumerate(zip(ends - lengths, ends, strict=True)):
        got = bytes(spelled[start:end])
        entry = tokenizer.get_added_tokens_decoder().get(token)
        if expected.is_special_token(token):
            assert got[:1] in (b"\xff", b"")
        elif entry is not None:
            assert got == entry.content.encode()  # the library takes the letters of some for bytes
        else:
            assert got == expected.decode_bytes([token])
    tokenize = text_tokenizer(tokenizer)
    plain = [text for text in TEXTS if text not in ("</s>", "<|tag|>")]
    assert [tokenize(text) for text in plain] == [expected.tokenize_str(text) for text in plain]


def test_what_looks_special_is_spelled_in_plain_tokens() -> None:
    """A special token is no text, so no grammar admits it in a text's place."""
    tokenizer = with_added_tokens()
    tokenize = text_tokenizer(tokenizer)
    for text in ("</s>", "<|tag|>"):
        assert tokenizer.token_to_id(text) not in tokenize(text)
        assert tokenizer.decode(tokenize(text)) == text


def test_ids_that_no_token_has() -> None:
    """As Command-R's vocabulary has them: they are never allowed."""
    known = {letter: 2 * at for at, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    made = tokenizers.Tokenizer(models.BPE(vocab=known, merges=[]))
    made.decoder = decoders.ByteLevel()
    lengths, _ = token_bytes(made, 512)
    assert list(lengths) == [1, 0] * 256


@pytest.mark.parametrize("decoder", [decoders.WordPiece(), None], ids=["WordPiece", "none"])
def test_tokens_that_are_no_bytes_are_refused(decoder: Any) -> None:
    made = byte_tokenizer()
    made.decoder = decoder
    with pytest.raises(InvalidRequestError, match=r"cannot use this tokenizer.*not spelled in bytes: its decoder is"):
        GuidedVocabulary(engine_of(made))


def engine_of(tokenizer: tokenizers.Tokenizer) -> Any:
    known = Tokenizer(tokenizer)
    return SimpleNamespace(path="made", tokenizer=known, vocab_size=known.vocab_size, eos_token_ids=[0])


def test_other_threads_go_on_meanwhile() -> None:
    """A thread that wakes every millisecond does so while a large vocabulary is read. If that held the interpreter's
    lock, it would wake a few times, between the steps. Others may have the processor, so one try of many is enough."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [first + second + third for first in letters[:40] for second in letters[:40] for third in letters[:40]]
    made = byte_tokenizer()
    made.model = models.BPE(vocab={word: at for at, word in enumerate([*letters, *words])}, merges=[])
    engine = engine_of(made)
    library.load_library()
    wakes, over = [0], threading.Event()

    def wake() -> None:
        while not over.wait(0.001):
            wakes[0] += 1

    thread = threading.Thread(target=wake)
    thread.start()
    try:
        assert any(_wakes_during(lambda: GuidedVocabulary(engine).tokens, wakes) > 20 for _ in range(20))
    finally:
        over.set()
        thread.join()


def _wakes_during(work: Any, wakes: list[int]) -> int:
    before = wakes[0]
    work()
    return wakes[0] - before


def test_what_takes_long_lets_go_of_the_lock() -> None:
    """ctypes marks the functions that keep it."""
    keeps = 4  # FUNCFLAG_PYTHONAPI
    loaded = library.load_library()
    assert not [name for name in library.SLOW if getattr(loaded, name)._flags_ & keeps]
    assert [name for name in library.QUICK if getattr(loaded, name)._flags_ & keeps] == list(library.QUICK)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The threads that read a vocabulary."""
    found: list[str] = []

    class Counted(GuidedVocabulary):
        def __init__(self, engine: Any):
            found.append(threading.current_thread().name)
            super().__init__(engine)

    monkeypatch.setattr(vocabulary, "GuidedVocabulary", Counted)
    return found


@pytest.mark.parametrize(("when", "reader"), [("eager", "tensorwright-vocabulary"), ("lazy", "MainThread")])
def test_read_once_and_when_it_is_asked_for(
    fake: FakeEngine, tmp_path: Path, reads: list[str], when: str, reader: str
) -> None:
    params = SamplingParams(max_tokens=4, guided_decoding=GuidedDecodingParams(regex="ab"))
    with LLM(write_engine(tmp_path / "engine"), kv_cache_memory="1MiB", guided_vocabulary=when) as llm:
        if when == "eager":
            wait_until(lambda: reads)
        assert reads == ([reader] if when == "eager" else [])
        assert [llm.generate("ab", params).outputs[0].text for _ in range(2)] == ["ab", "ab"]
        assert reads == [reader]


def test_an_engine_that_cannot_be_guided_opens_eagerly_too(fake: FakeEngine, tmp_path: Path) -> None:
    engine = write_engine(tmp_path / "engine", tokenizer=False)
    params = SamplingParams(guided_decoding=GuidedDecodingParams(regex="a"), detokenize=False)
    with LLM(engine, kv_cache_memory="1MiB", guided_vocabulary="eager") as llm:
        for _ in range(2):
            with pytest.raises(InvalidRequestError, match="has no tokenizer, which guided decoding needs"):
                llm.generate_async({"prompt_token_ids": [1]}, params)


def test_no_engine_waits_for_anothers_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def read(engine: Any) -> str:
        if engine == "slow":
            begun.set()
            assert go_on.wait(PATIENCE)
        return engine

    monkeypatch.setattr(vocabulary, "GuidedVocabulary", read)
    engines: dict[str, Any] = {name: VocabularyReader(name) for name in ("slow", "other")}  # type: ignore[arg-type]
    engines["slow"].start()
    try:
        assert begun.wait(PATIENCE)
        assert engines["other"].get() == "other"
    finally:
        go_on.set()
    assert engines["slow"].get() == "slow"


@pytest.mark.parametrize("change", ["function", "structure"])
def test_another_c_interface_is_refused(monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    import llguidance

    if change == "function":
        monkeypatch.setitem(library.SLOW, "llg_new_tokenizer_v9", (None, []))
    else:
        limits = {**{name: 0 for name, _ in library._Limits._fields_}, "another": 1}
        monkeypatch.setattr(llguidance, "LLParserLimits", lambda: SimpleNamespace(**limits))
    with pytest.raises(MissingDependencyError, match=r"does not know the C interface.*pip install"):
        library.Library()
