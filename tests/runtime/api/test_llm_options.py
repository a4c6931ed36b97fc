"""LLM's options and what a caller may get wrong: refused by name, before a build and before any request starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.fake_runtime import FakeEngine, fake_module, write_engine
from tensorwright.errors import (
    EngineError,
    InvalidOptionError,
    InvalidRequestError,
    OutOfMemoryError,
    PromptTooLongError,
)
from tensorwright.runtime.api import model_cache
from tensorwright.runtime.api.llm import LLM
from tensorwright.runtime.engine import native
from tensorwright.runtime.requests.sampling_params import SamplingParams


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    engine = FakeEngine()
    monkeypatch.setattr(native, "create_engine", lambda *args: engine)
    monkeypatch.setattr(native, "load_module", fake_module)
    return engine


def ids(count: int) -> dict[str, Any]:
    return {"prompt_token_ids": [10] * count}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"accuracy": "full"}, "no option 'accuracy'; it is an option of build"),
        ({"kv_cache_size": 1}, "no option 'kv_cache_size'; did you mean kv_cache_dtype or kv_cache_memory"),
        ({"kv_cache_memory": "much"}, "kv_cache_memory must be a positive number of bytes"),
        ({"max_batch_size": 0}, "max_batch_size must be a positive integer of at most 2147483647, got 0"),
        ({"max_batch_size": 600}, "at least max_batch_size"),
        ({"max_num_tokens": 1 << 40}, "max_num_tokens must be a positive integer of at most 2147483647"),
        ({"max_prefill_chunk": 0}, "max_prefill_chunk must be"),
        ({"max_prompt_logprob_rows": 0}, "max_prompt_logprob_rows must be a positive integer"),
        ({"threads": -1}, "threads must be"),
        ({"threads": 2000}, "threads must be a positive integer of at most 1024, got 2000"),
        ({"load": "slow"}, "map, copy, got 'slow'"),
        ({"numa": "on"}, "numa must be one of auto, off, split, interleave, got 'on'"),
        ({"numa": "split"}, "numa='split': pages of a mapped file .* set load to 'copy'"),
        ({"guided_vocabulary": "early"}, "guided_vocabulary must be one of lazy, eager, got 'early'"),
        ({"enable_prefix_caching": "no"}, "enable_prefix_caching must be True or False, got 'no'"),
        ({"dtype": "bfloat16"}, "built as float32"),
        ({"dtype": "int7"}, "dtype must be one of auto, float32, bfloat16, float16, got 'int7'"),
    ],
)
def test_impossible_options(fake: FakeEngine, tmp_path: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidOptionError, match=words):
        LLM(write_engine(tmp_path / "engine"), **options)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (2047, "at least one block of 2048 bytes, got 2047"),
        (1 << 70, "TiB, but .* of memory are available: ask for less"),
        ("1000TiB", "kv_cache_memory is 1000.0 TiB"),
    ],
)
def test_impossible_kv_sizes(fake: FakeEngine, tmp_path: Path, asked: Any, words: str) -> None:
    with pytest.raises(OutOfMemoryError, match=words):
        LLM(write_engine(tmp_path / "engine"), kv_cache_memory=asked)


def test_a_start_without_memory_is_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> None:
        raise MemoryError("std::bad_alloc")

    module = fake_module()
    module.Engine = fail
    monkeypatch.setattr(native, "load_module", lambda: module)
    with pytest.raises(OutOfMemoryError, match=r"not enough memory to start with max_batch_size=5 .* lower them"):
        LLM(write_engine(tmp_path / "engine"), kv_cache_memory="1MiB", max_batch_size=5)


def test_one_block_of_kv_is_enough(fake: FakeEngine, tmp_path: Path) -> None:
    with LLM(write_engine(tmp_path / "engine"), kv_cache_memory=2048) as llm:
        assert llm.options.kv_cache_bytes == 2048


@pytest.mark.parametrize(("tokens", "batch"), [(16, 16), (64, 64), (1000, 64)])
def test_fewer_tokens_than_the_usual_batch_lower_it(fake: FakeEngine, tmp_path: Path, tokens: int, batch: int) -> None:
    with LLM(write_engine(tmp_path / "engine"), kv_cache_memory="1MiB", max_num_tokens=tokens) as llm:
        assert (llm.options.max_batch_size, llm.options.max_num_tokens) == (batch, tokens)


def test_a_small_kv_cache_refuses_before_anything_starts(fake: FakeEngine, tmp_path: Path) -> None:
    fake.blocks = 2  # 64 positions; the last token needs none
    with LLM(write_engine(tmp_path / "engine"), kv_cache_memory="1MiB") as llm:
        words = "the KV cache holds 65 tokens .* has 60 and max_tokens is 6: shorten one, or raise kv_cache_memory"
        with pytest.raises(PromptTooLongError, match=words):
            llm.generate([ids(1), ids(60)], SamplingParams(max_tokens=6))
        assert not fake.submitted
        whole = llm.generate([ids(60), ids(1)], SamplingParams(max_tokens=5))
        assert [len(output.outputs[0].token_ids) for output in whole] == [5, 5]
        assert len(llm.generate(ids(60), SamplingParams(max_tokens=None)).outputs[0].token_ids) == 5


@pytest.mark.parametrize("prompts", [None, 7, b"bytes", [None], [b"bytes"]])
def test_what_is_no_prompt_is_named(fake: FakeEngine, tmp_path: Path, prompts: Any) -> None:
    kind = type(prompts[0] if isinstance(prompts, list) else prompts).__name__
    with (
        LLM(write_engine(tmp_path / "engine"), kv_cache_memory="1MiB") as llm,
        pytest.raises(InvalidRequestError, match=f"a prompt must be a string or .*, got {kind}"),
    ):
        llm.generate(prompts)


def test_options_are_refused_before_a_model_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(model_cache, "_import_builder", lambda: pytest.fail("it was to be built"))
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    for options in ({"threads": 0}, {"kv_cache_memory": "lots"}, {"load": "slow"}):
        with pytest.raises(InvalidOptionError):
            LLM(tmp_path, **options)  # type: ignore[arg-type]


def test_a_damaged_cached_engine_says_what_to_remove(
    fake: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(model_cache, "_import_builder", lambda: lambda source, out, dtype: write_engine(out) and None)
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "llama"}')
    with LLM(model, kv_cache_memory="1MiB") as llm:
        built = llm.engine.path
    (built / "cpu/plan.bin").write_bytes(b"x")
    with pytest.raises(
        EngineError, match=rf"plan.bin: truncated.*; remove it with 'tensorwright cache clear {built.name}'"
    ):
        LLM(model, kv_cache_memory="1MiB")
