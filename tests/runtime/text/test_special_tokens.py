"""Tokens that only tokenizer_config.json or special_tokens_map.json call special, and the token that ends a request."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer

from support.fake_runtime import EOS, A, B, FakeEngine, byte_tokenizer, engine_config, ids, write_engine
from tensorwright import LLM, GuidedDecodingParams, SamplingParams
from tensorwright.errors import InvalidRequestError

MASK, PLAIN, WORD = 257, 258, 259
BOTH = {"skip_special_tokens": False, "include_stop_str_in_output": True}


def unmarked() -> Tokenizer:
    """The bytes, then <end>, <mask>, <plain>, which are added but not special, and "th", a word of the vocabulary."""
    raw = json.loads(byte_tokenizer().to_str())
    raw["added_tokens"] = []
    raw["model"]["vocab"] |= {"<end>": EOS, "<mask>": MASK, "<plain>": PLAIN, "th": WORD}
    tokenizer = Tokenizer.from_str(json.dumps(raw))
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in ("<end>", "<mask>", "<plain>")])
    return tokenizer


@pytest.fixture
def open_llm(fake: FakeEngine, tmp_path: Path) -> Iterator[Callable[[dict[str, Any]], LLM]]:
    """An LLM over an engine with this tokenizer and these further files, as JSON."""
    opened = []

    def make(files: dict[str, Any]) -> LLM:
        more = {"tokenizer.json": unmarked().to_str()} | {name: json.dumps(value) for name, value in files.items()}
        config = engine_config()
        config["model"]["vocab_size"] = 264
        opened.append(LLM(write_engine(tmp_path / "engine", config, False, more), kv_cache_memory="1MiB"))
        return opened[-1]

    yield make
    for llm in opened:
        llm.shutdown()


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer_config.json": {"eos_token": "<end>", "mask_token": {"content": "<mask>", "lstrip": False}}},
        {"tokenizer_config.json": {"additional_special_tokens": ["<end>", {"content": "<mask>"}]}},
        {"tokenizer_config.json": {"extra_special_tokens": {"image_token": "<mask>"}, "pad_token": "<end>"}},
        {
            "tokenizer_config.json": {
                "added_tokens_decoder": {
                    str(EOS): {"content": "<end>", "special": True},
                    str(MASK): {"content": "<mask>", "special": True},
                    str(PLAIN): {"content": "<plain>", "special": False},
                }
            }
        },
        {"tokenizer_config.json": {}, "special_tokens_map.json": {"eos_token": "<end>", "mask_token": "<mask>"}},
        {"special_tokens_map.json": {"additional_special_tokens": ["<end>", "<mask>", "<unknown>", 3, ""]}},
    ],
)
def test_every_file_that_names_special_tokens_counts(open_llm: Callable[..., LLM], files: dict[str, Any]) -> None:
    llm = open_llm(files)
    prompt, params = ids(A, MASK, PLAIN, EOS, B), {"max_tokens": 5, "ignore_eos": True}
    tokenizer = llm.engine.tokenizer
    assert tokenizer is not None
    letters = [tokenizer.decode([token]) for token in (A, B)]
    assert llm.generate(prompt, SamplingParams(**params)).outputs[0].text == f"{letters[0]}<plain>{letters[1]}"
    shown = llm.generate(prompt, SamplingParams(**params, skip_special_tokens=False)).outputs[0]
    assert shown.text == f"{letters[0]}<mask><plain><end>{letters[1]}"
    assert tokenizer.encode("a<mask>b<plain>")[1::2] == [MASK, PLAIN]


def test_a_word_of_the_vocabulary_may_be_called_special(open_llm: Callable[..., LLM]) -> None:
    """As in transformers, its text is then its token wherever it stands."""
    tokenizer = open_llm({"tokenizer_config.json": {"sep_token": "th"}}).engine.tokenizer
    assert tokenizer is not None
    assert tokenizer.encode("aths")[1:2] == [WORD]
    assert tokenizer.decode([A, WORD]) == tokenizer.decode([A])


@pytest.mark.parametrize("files", [{}, {"tokenizer_config.json": {"eos_token": "<end>"}}])
@pytest.mark.parametrize(
    ("changes", "end"),
    [({}, ""), ({"skip_special_tokens": False}, ""), (BOTH, ""), ({**BOTH, "stop_token_ids": [EOS]}, "<end>")],
)
def test_the_token_that_ended_a_request_is_no_text(
    open_llm: Callable[..., LLM], fake: FakeEngine, files: dict[str, Any], changes: dict[str, Any], end: str
) -> None:
    """Marked special or not. A stop token of the request's own is, if it asks for what it stops at."""
    llm = open_llm(files)
    assert llm.engine.tokenizer is not None
    for fake.tokens_per_event in (1, 8):
        output = llm.generate(ids(A, EOS), SamplingParams(**changes)).outputs[0]
        assert (output.token_ids, output.finish_reason) == ([A, EOS], "stop")
        assert output.text == llm.engine.tokenizer.decode([A]) + end


@pytest.mark.parametrize("kept", [("<mask>",), ["<mask>", "<end>"], ()])
def test_special_tokens_that_are_kept(open_llm: Callable[..., LLM], fake: FakeEngine, kept: Any) -> None:
    llm = open_llm({"tokenizer_config.json": {"eos_token": "<end>", "mask_token": "<mask>"}})
    prompt, params = ids(A, MASK, PLAIN, EOS, B), {"max_tokens": 5, "ignore_eos": True}
    shown = llm.generate(prompt, SamplingParams(**params, skip_special_tokens=False)).outputs[0].text
    expected = shown
    for special in {"<mask>", "<end>"} - set(kept):
        expected = expected.replace(special, "")
    for fake.tokens_per_event in (1, 8):
        assert llm.generate(prompt, SamplingParams(**params, kept_special_tokens=kept)).outputs[0].text == expected
    for wrong in ("<plain>", "<unknown>", "a"):
        with pytest.raises(InvalidRequestError, match="kept_special_tokens must be special tokens of the engine"):
            llm.generate(prompt, SamplingParams(kept_special_tokens=[wrong]))


@pytest.mark.parametrize("named", [True, False])
def test_guided_texts_hold_no_special_token(open_llm: Callable[..., LLM], fake: FakeEngine, named: bool) -> None:
    files = {"tokenizer_config.json": {"eos_token": "<end>", **({"sep_token": "th"} if named else {})}}
    llm = open_llm(files)
    shape = GuidedDecodingParams(json={"type": "string", "maxLength": 8})
    output = llm.generate('"ab"', SamplingParams(guided_decoding=shape)).outputs[0]
    assert (json.loads(output.text), output.token_ids[-1], output.finish_reason) == ("ab", EOS, "stop")
    inside = next(mask for (_, _, generated), mask in fake.masks.items() if generated == 2)
    assert np.unpackbits(inside.view(np.uint8), bitorder="little")[WORD] == (not named)
