"""The text side of an engine: converted tokenizers, special tokens, templates, and what is told of their faults."""

from __future__ import annotations

import base64
import io
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import ByteLevelBPETokenizer, Tokenizer, decoders, models, normalizers
from transformers import AutoTokenizer, ProcessorMixin

from support.made_checkpoints import write_checkpoint
from tensorwright.builder.emit.engine_dir import EngineWriter
from tensorwright.builder.emit.text_side import TEXTS, write_text_side
from tensorwright.errors import CheckpointError, TensorwrightWarning
from tensorwright.models.checkpoint import PROCESSOR_TEMPLATES, open_checkpoint
from tensorwright.runtime.text.detokenizer import IncrementalDetokenizer
from tensorwright.runtime.text.special_tokens import special_tokens
from tensorwright.runtime.text.tokenizer import Tokenizer as EngineTokenizer

WORDS = ["The quick brown fox jumps over the lazy dog", "a café in Ελλάδα, naïve 日本", "  def f(x): return x[0] ** 2"]
Files = dict[str, bytes]


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def byte_level() -> Files:
    """vocab.json and merges.txt, trained on a few words."""
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(WORDS * 9, vocab_size=300, special_tokens=["<|endoftext|>"], show_progress=False)
    model = json.loads(tokenizer.to_str())["model"]
    pairs = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    return {"vocab.json": as_json(model["vocab"]), "merges.txt": "\n".join(["#version: 0.2", *pairs, ""]).encode()}


def sentencepiece(kind: str, **options: Any) -> Files:
    """tokenizer.model, trained on a few words. kind: "bpe" or "unigram"."""
    from sentencepiece import SentencePieceTrainer

    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter([f"{text} {i}" for text in WORDS for i in range(30)]), model_writer=model,
        vocab_size=360, model_type=kind, byte_fallback=True, hard_vocab_limit=False, minloglevel=2,
        normalization_rule_name="identity", remove_extra_whitespaces=False, **options,
    )  # fmt: skip
    return {"tokenizer.model": model.getvalue()}


def tekken() -> Files:
    """tekken.json of single bytes, as Mistral's newer models have it."""
    vocabulary = [{"rank": byte, "token_bytes": base64.b64encode(bytes([byte])).decode()} for byte in range(256)]
    special = [
        {"rank": rank, "token_str": text, "is_control": True} for rank, text in enumerate(("<unk>", "<s>", "</s>"))
    ]
    config = {"pattern": r"\s+|\S+", "default_vocab_size": 259, "default_num_special_tokens": 3, "version": "v7"}
    return {"tekken.json": as_json({"config": config, "vocab": vocabulary, "special_tokens": special})}


def tiktoken() -> Files:
    lines = [base64.b64encode(bytes([byte])) + b" %d\n" % byte for byte in range(256)]
    return {"tokenizer.model": b"".join([*lines, base64.b64encode(b"th") + b" 256\n"])}


def settings(kind: str, **more: Any) -> Files:
    return {"tokenizer_config.json": as_json({"tokenizer_class": kind, **more})}


class Written:
    """What write_text_side makes of a checkpoint of these files."""

    def __init__(self, path: Path, files: Files, family: str = "llama"):
        self.model = write_checkpoint(path / "model", {"a": np.zeros(2, np.float32)}, model_type=family)
        for name, data in files.items():
            (self.model / name).parent.mkdir(exist_ok=True)
            (self.model / name).write_bytes(data)
        with EngineWriter(path / "engine") as writer, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.record = write_text_side(writer, open_checkpoint(self.model))
            found = (file for file in writer.directory.rglob("*") if file.is_file())
            self.files = {file.relative_to(writer.directory).as_posix(): file.read_bytes() for file in found}
        self.warnings = [str(each.message) for each in caught if issubclass(each.category, TensorwrightWarning)]

    @property
    def tokenizer(self) -> EngineTokenizer:
        """As an engine opens it."""
        read = [
            json.loads(self.files.get(f"{name}.json", b"{}")) for name in ("tokenizer_config", "special_tokens_map")
        ]
        return EngineTokenizer(Tokenizer.from_str(self.files["tokenizer.json"].decode()), special_tokens(*read))


@pytest.mark.parametrize(
    ("make", "family", "more"),
    [
        (byte_level, "gpt2", {}),
        (byte_level, "qwen2", settings("Qwen2Tokenizer", eos_token="<|endoftext|>")),
        (tekken, "mistral", {}),
        (tiktoken, "llama", {}),
        (lambda: sentencepiece("bpe", add_dummy_prefix=False), "gemma2", settings("GemmaTokenizer")),
    ],
)
def test_older_files_become_a_tokenizer(tmp_path: Path, make: Any, family: str, more: Files) -> None:
    made = make()
    one = Written(tmp_path / "one", made | more, family)
    reference = AutoTokenizer.from_pretrained(one.model)
    assert [one.tokenizer.encode(text) for text in TEXTS] == [reference(text)["input_ids"] for text in TEXTS]
    assert (one.record["source"], one.record["differences"], one.warnings) == ([*made], [], [])
    for text in WORDS:
        assert one.tokenizer.decode(one.tokenizer.encode(text)).lstrip(" ") == text.lstrip(" ")
    assert Written(tmp_path / "two", made | more, family).files == one.files


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_a_sentencepiece_model_is_encoded_as_by_itself(tmp_path: Path, kind: str, family: str) -> None:
    """Where transformers puts no blank before a text, or none before one that begins with a blank, it is told."""
    from sentencepiece import SentencePieceProcessor

    one, two = (Written(tmp_path / n, sentencepiece(kind) | settings("LlamaTokenizer"), family) for n in ("1", "2"))
    original = SentencePieceProcessor(model_file=str(one.model / "tokenizer.model"))
    for text in (*TEXTS, *WORDS):
        assert one.tokenizer.encode(text, add_special_tokens=False) == original.encode(text), text
        assert one.tokenizer.decode(original.encode(text)) == original.decode(original.encode(text))
    [warning] = one.warnings
    assert "otherwise than LlamaTokenizer" in warning or "otherwise than TokenizersBackend" in warning
    assert " leading" in {each["text"] for each in one.record["differences"]}
    assert two.files == one.files


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_pieces_of_a_sentencepiece_model_are_streamed_as_it_decodes_them(tmp_path: Path, kind: str) -> None:
    """Characters that the model lacks are byte tokens, which are given out when their character is whole."""
    from sentencepiece import SentencePieceProcessor

    made = Written(tmp_path, sentencepiece(kind) | settings("LlamaTokenizer"))
    original = SentencePieceProcessor(model_file=str(made.model / "tokenizer.model"))
    texts = [*TEXTS, *WORDS, "a€b𝄞c", "🏳\ufe0f\u200d🌈 end"]
    assert any(original.is_byte(token) for token in original.encode(texts[-1]))
    for text in texts:
        detokenizer = IncrementalDetokenizer(made.tokenizer)
        pieces = [detokenizer.push([token]) for token in original.encode(text)] + [detokenizer.flush()]
        assert "".join(pieces) == original.decode(original.encode(text)), text
        assert not any("\ufffd" in piece for piece in pieces)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_truncated_sentencepiece_model_is_told(tmp_path: Path, kind: str) -> None:
    whole = sentencepiece(kind)["tokenizer.model"]
    written = Written(tmp_path, {"tokenizer.model": whole[: len(whole) // 2]})
    assert "no tokenizer.json, and tokenizer.model cannot be converted: " in written.warnings[0]
    assert "tokenizer.json" not in written.files


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "no tokenizer: the engine takes and gives token ids only, and tensorwright serve refuses it"),
        (byte_level(), "no tokenizer.json, and vocab.json, merges.txt cannot be converted: "),
        ({"tokenizer.model": b"\n\x05broken"}, "tokenizer.model cannot be converted: "),
        ({"tokenizer.model": b"no lines of tiktoken"}, "tokenizer.model cannot be converted: "),
        ({"tekken.json": b"{}"}, "tekken.json cannot be converted: "),
    ],
)
def test_what_cannot_be_converted_is_told_with_what_follows(tmp_path: Path, files: Files, words: str) -> None:
    written = Written(tmp_path, files)
    [warning] = written.warnings
    assert warning.startswith(f"{written.model}: ")
    assert words in warning
    assert "put a tokenizer.json beside the weights" in warning
    assert (written.record["source"], written.record["warnings"]) == ([], [warning.removeprefix(f"{written.model}: ")])
    assert "tokenizer.json" not in written.files


def test_an_absent_sentencepiece_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = sentencepiece("bpe")
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    assert "it needs sentencepiece, which is not installed" in Written(tmp_path, made).warnings[0]


def llama2() -> Files:
    """tokenizer.json as Llama 2's: blanks become "▁", one is put before the text, and words of blanks are merged."""
    pieces = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        "▁▁",
        *"abcdefghijklmnopqrstuvwxyz",
    ]
    model = models.BPE(
        vocab={piece: number for number, piece in enumerate([*pieces, "▁l", "▁le"])}, unk_token="<unk>",
        merges=[("▁", "▁"), ("▁", "l"), ("▁l", "e")], byte_fallback=True, fuse_unk=True,
    )  # fmt: skip
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return {"tokenizer.json": tokenizer.to_str().encode()}


def test_texts_that_transformers_encodes_otherwise_are_told(tmp_path: Path) -> None:
    """The build goes on with tokenizer.json as the tokenizers library reads it."""
    made = llama2()
    written = Written(tmp_path, made | settings("LlamaTokenizer", legacy=False))
    assert written.files["tokenizer.json"] == made["tokenizer.json"]
    reference = AutoTokenizer.from_pretrained(written.model)
    differing = {each["text"]: each for each in written.record["differences"]}
    assert " leading" in differing
    assert "Hello, world! It's 1234567.89" not in differing
    for text, each in differing.items():
        assert each == {
            "text": text,
            "ids": written.tokenizer.encode(text),
            "transformers_ids": reference(text)["input_ids"],
        }
        assert each["ids"] != each["transformers_ids"]
    [warning] = written.warnings
    assert f"encodes {len(differing)} otherwise than LlamaTokenizer of transformers: " in warning


def test_what_transformers_class_calls_special_is_kept(tmp_path: Path) -> None:
    """As Gemma's <mask>, which no file of it calls so."""
    raw = json.loads(llama2()["tokenizer.json"])
    raw["model"]["vocab"]["<mask>"] = len(raw["model"]["vocab"])
    stored = {"special_tokens_map.json": as_json({"additional_special_tokens": ["a"]})}
    written = Written(
        tmp_path, {"tokenizer.json": as_json(raw)} | settings("GemmaTokenizer", unk_token="<unk>") | stored, "gemma2"
    )
    special = json.loads(written.files["special_tokens_map.json"])
    assert special["additional_special_tokens"] == ["a"]
    assert special["mask_token"] == "<mask>"
    assert not {"unk_token", "pad_token"} & set(special)  # named already, and not in the vocabulary
    assert written.tokenizer.decode([raw["model"]["vocab"]["<mask>"]]) == ""


def test_a_tokenizer_that_transformers_cannot_read_is_taken_as_it_is(tmp_path: Path) -> None:
    made = llama2() | settings("LlamaTokenizer", auto_map={"AutoTokenizer": ["own.Own", None]})
    written = Written(tmp_path, made | {"added_tokens.json": b"["})
    assert written.files["tokenizer.json"] == made["tokenizer.json"]
    assert "is not compared with transformers', which cannot read it: " in written.warnings[0]


@pytest.mark.parametrize("as_files", [True, False])
def test_every_chat_template_is_kept(tmp_path: Path, as_files: bool) -> None:
    texts = {"default": "d{{ 1 }}", "tool_use": "t{{ 1 }}", "rag": "r{{ 1 }}"}
    listed = settings("X", chat_template=[{"name": name, "template": text} for name, text in texts.items()])
    files = {f"additional_chat_templates/{name}.jinja": texts[name].encode() for name in ("tool_use", "rag")}
    files["chat_template.jinja"] = texts["default"].encode()
    written = Written(tmp_path, files if as_files else listed)
    assert {name: data for name, data in written.files.items() if name.endswith(".jinja")} == files


@pytest.mark.parametrize(
    ("files", "taken"),
    [
        (("chat_template.json",), "chat_template.json"),
        (("chat_template.json", "processor_config.json"), "processor_config.json"),
        (("chat_template.json", "processor_config.json", "tokenizer_config.json"), "tokenizer_config.json"),
        (("chat_template.json", "tokenizer_config.json", "chat_template.jinja"), "chat_template.jinja"),
    ],
)
def test_a_processor_gives_the_template_that_the_tokenizer_lacks(tmp_path: Path, files: Any, taken: str) -> None:
    made = {file: file.encode() if file.endswith(".jinja") else as_json({"chat_template": file}) for file in files}
    written = Written(tmp_path, made)
    assert written.files["chat_template.jinja"] == taken.encode()
    if taken in PROCESSOR_TEMPLATES:
        assert ProcessorMixin.get_processor_dict(written.model)[0]["chat_template"] == taken
    assert {path.name for path in open_checkpoint(written.model).source_files} >= set(files)


@pytest.mark.parametrize("file", ["chat_template.json", "processor_config.json"])
@pytest.mark.parametrize("content", [b"{", b"[]", b'{"chat_template": 3}'])
def test_a_wrong_template_of_a_processor_is_refused(tmp_path: Path, file: str, content: bytes) -> None:
    with pytest.raises(CheckpointError, match=file):
        Written(tmp_path, {file: content})
