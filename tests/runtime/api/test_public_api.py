"""What the Python API shows: the tokenizer, the length, the name of the model, and nothing that is not for callers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.fake_runtime import EOS, FakeEngine, write_engine
from support.waiting import PATIENCE
from tensorwright import LLM, SamplingParams
from tensorwright.errors import InvalidOptionError, InvalidRequestError

HANDLE = {"abort", "done", "error", "latest", "on_change", "request_id", "result", "so_far"}
LLM_NAMES = {
    "abort", "adapters", "add_observer", "capacity", "chat", "chat_template", "default_sampling_params", "embed",
    "engine", "generate", "generate_async", "get_profile", "get_stats", "load_adapter", "max_seq_len", "options",
    "prefix_transfers", "profile", "reasoning_parser", "rerank", "running", "sampling_defaults", "score", "shutdown",
    "stalled_seconds", "tokenizer", "tool_parser", "trouble", "unload_adapter", "pin_prefix", "unpin_prefix",
    "pinned_prefixes", "pins", "cache_events",
}  # fmt: skip
TOKENIZER = {"count", "decode", "encode"}


def public(thing: Any) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


def test_only_what_callers_may_use_is_public(llm: LLM) -> None:
    handle = llm.generate_async("ab", SamplingParams(max_tokens=2))
    assert handle.result(PATIENCE).finished
    assert (public(handle), public(llm), public(llm.tokenizer)) == (HANDLE, LLM_NAMES, TOKENIZER)


def test_the_tokenizer_is_that_of_requests(llm: LLM) -> None:
    output = llm.generate("abc é", SamplingParams(max_tokens=6))
    tokenizer = llm.tokenizer
    assert tokenizer.encode("abc é") == output.prompt_token_ids
    assert tokenizer.count("abc é") == len(output.prompt_token_ids) == 6
    assert tokenizer.decode(output.outputs[0].token_ids) == output.outputs[0].text
    ids = [*tokenizer.encode("ab", add_special_tokens=False), EOS]
    assert tokenizer.decode(ids) == "ab"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "ab<end>"


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda tokenizer: tokenizer.encode("\ud800"), "not valid Unicode text"),
        (lambda tokenizer: tokenizer.count(b"ab"), "b'ab' is not valid Unicode text"),
        (lambda tokenizer: tokenizer.decode([1, 257]), "ids must be integers from 0 to 256, got 257"),
        (lambda tokenizer: tokenizer.decode([-1]), "got -1"),
        (lambda tokenizer: tokenizer.decode(["a"]), "got 'a'"),
    ],
)
def test_what_is_no_text_or_no_token_is_refused(llm: LLM, act: Any, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        act(llm.tokenizer)


def test_without_a_tokenizer(fake: FakeEngine, tmp_path: Path) -> None:
    with LLM(write_engine(tmp_path / "engine", tokenizer=False), kv_cache_memory="1MiB") as llm:
        assert llm.max_seq_len == 128
        with pytest.raises(InvalidRequestError, match="has no tokenizer: prompts are token ids"):
            _ = llm.tokenizer


def test_the_model_by_keyword(fake: FakeEngine, tmp_path: Path) -> None:
    """As vLLM and TensorRT-LLM call it."""
    with LLM(model=write_engine(tmp_path / "engine"), kv_cache_memory="1MiB") as llm:
        assert llm.max_seq_len == 128
    with pytest.raises(InvalidOptionError, match="must be given the path of an engine or of a model directory"):
        LLM(model="")
