"""Wrong engines and wrong requests: one typed error each, before anything runs; who else is served never notices."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.plan_writer import EMBEDDING
from support.toy_engine import FILES, MAX_SEQ_LEN, VOCAB, make_toy, seal, write_toy_engine
from support.waiting import PATIENCE
from tensorwright import LLM, SamplingParams
from tensorwright.engine_format.targets import TARGET_NAMES
from tensorwright.errors import (
    EngineError,
    InvalidOptionError,
    InvalidRequestError,
    NumericalError,
    OutOfMemoryError,
    PromptTooLongError,
)

KV = "1MiB"
LONG = {"prompt_token_ids": [7, 8, 9]}
LONG_PARAMS = SamplingParams(max_tokens=120, temperature=0.7, seed=3, ignore_eos=True, logprobs=1)


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    return write_toy_engine(tmp_path / "engine")


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    with LLM(write_toy_engine(tmp_path_factory.mktemp("toy") / "engine"), kv_cache_memory=KV, threads=1) as llm:
        yield llm


def refused(engine: Path) -> str:
    with pytest.raises(EngineError) as caught:
        LLM(engine, kv_cache_memory=KV, threads=1)
    return str(caught.value)


@pytest.mark.parametrize("name", [*FILES, "checksums.txt"])
def test_truncated_and_flipped(engine: Path, name: str) -> None:
    path = engine / name
    sound = path.read_bytes()
    rng = random.Random(name)
    for _ in range(12):
        path.write_bytes(sound[: rng.randrange(len(sound) - 1)])
        assert name.split("/")[-1] in refused(engine)
        bit = rng.randrange(8 * len(sound))
        flipped = bytearray(sound)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(bytes(flipped))
        assert "again" in refused(engine) or name == "config.json"
    path.unlink()
    assert name.split("/")[-1] in refused(engine)
    path.write_bytes(sound)
    LLM(engine, kv_cache_memory=KV, threads=1).shutdown()


@pytest.mark.parametrize("name", ["config.json", "cpu/plan.bin", "cpu/weights.bin"])
def test_mixed_from_two_builds(engine: Path, tmp_path: Path, name: str) -> None:
    """Noticed by the checksums; and where somebody made those true again, by what the files say of each other."""
    other = write_toy_engine(tmp_path / "other", make_toy(inter=88, block_size=16))
    shutil.copy(other / name, engine / name)
    assert Path(name).name in refused(engine)
    seal(engine)
    text = refused(engine)
    assert "two builds" in text or "weights.bin" in text


def test_newer_versions_and_other_targets(engine: Path) -> None:
    sound = (engine / "config.json").read_text()
    for old, new, words in (
        ('"format_version": 1', '"format_version": 7', "format version 7, this tensorwright reads 1; build"),
        (
            '"target": "cpu"',
            '"target": "abacus"',
            f"built for target 'abacus', this runtime runs {', '.join(TARGET_NAMES)}",
        ),
    ):
        assert old in sound
        (engine / "config.json").write_text(sound.replace(old, new))
        assert words in refused(engine)  # before the checksums: another version may have others
    (engine / "config.json").write_text(sound)
    plan = bytearray((engine / "cpu/plan.bin").read_bytes())
    plan[8] = 4
    (engine / "cpu/plan.bin").write_bytes(bytes(plan))
    seal(engine)
    assert "version must be 3, is 4" in refused(engine)


def test_what_is_no_path_to_an_engine(tmp_path: Path) -> None:
    for name in ("nowhere", "x" * 5000, "nul\0byte"):
        assert "no such engine" in refused(tmp_path / name)


def ids(*tokens: Any) -> dict[str, Any]:
    return {"prompt_token_ids": list(tokens)}


PROMPTS: list[tuple[Any, type[Exception]]] = [
    ("", InvalidRequestError), (ids(), InvalidRequestError), (ids(VOCAB), InvalidRequestError),
    (ids(-1), InvalidRequestError), (ids(1 << 40), InvalidRequestError), (ids(0.5), InvalidRequestError),
    (ids(None), InvalidRequestError), (None, InvalidRequestError), (b"bytes", InvalidRequestError),
    ("\udc80", InvalidRequestError), ({"prompt_token_ids": np.ones((2, 2), int)}, InvalidRequestError),
    ({"prompt_token_ids": "abc"}, InvalidRequestError), ({"text": "a"}, InvalidRequestError),
    (ids(*[1] * MAX_SEQ_LEN), PromptTooLongError), ("x" * 1000, PromptTooLongError),
]  # fmt: skip

PARAMS: list[dict[str, Any]] = [
    {"max_tokens": 0}, {"max_tokens": -1}, {"max_tokens": 1.5}, {"max_tokens": 1 << 40}, {"temperature": -0.1},
    {"temperature": float("nan")}, {"temperature": float("inf")}, {"temperature": "hot"}, {"top_p": 0}, {"top_p": 1.1},
    {"top_p": float("nan")}, {"top_k": -2}, {"top_k": 1 << 31}, {"top_k": 2.0}, {"seed": -1}, {"seed": 1 << 64},
    {"logprobs": -1}, {"logprobs": VOCAB + 1}, {"logprobs": True}, {"stop_token_ids": [VOCAB]},
    {"stop_token_ids": [-1]}, {"stop_token_ids": "ab"}, {"n": 0}, {"ignore_eos": 1}, {"no_such_parameter": 1},
]  # fmt: skip


def test_impossible_requests_disturb_nobody(llm: LLM) -> None:
    alone = llm.generate(LONG, LONG_PARAMS).outputs[0]
    together = llm.generate_async(LONG, LONG_PARAMS)
    for prompt, kind in PROMPTS:
        with pytest.raises(kind) as caught:
            llm.generate_async(prompt, SamplingParams(max_tokens=4))
        assert type(caught.value) is kind
    for params in PARAMS:
        with pytest.raises((InvalidRequestError, InvalidOptionError)) as refusal:
            llm.generate_async(ids(1), SamplingParams(**params))
        assert next(iter(params)) in str(refusal.value)
    other = together.result(PATIENCE).outputs[0]
    assert (other.token_ids, other.logprobs) == (alone.token_ids, alone.logprobs)
    stats = llm.get_stats()
    assert (stats["used_blocks"], stats["requests_failed"]) == (0, 0)


def test_budget_too_small(engine: Path) -> None:
    for budget in (1, 1000, 16_000):  # a block of the toy is 16 KiB
        with pytest.raises(OutOfMemoryError, match="at least one block"):
            LLM(engine, kv_cache_memory=budget, threads=1, max_batch_size=8)
    for nonsense in ("0", -1, 0, "lots", float("nan"), True):
        with pytest.raises(InvalidOptionError, match="kv_cache_memory"):
            LLM(engine, kv_cache_memory=nonsense, threads=1)  # type: ignore[arg-type]
    with LLM(engine, kv_cache_memory=50_000, threads=1, max_batch_size=1) as llm:
        room = llm.get_stats()["total_blocks"] * 32
        assert room < MAX_SEQ_LEN
        with pytest.raises(PromptTooLongError, match="kv_cache"):
            llm.generate(ids(*[1] * room), SamplingParams(max_tokens=2))
        assert llm.generate(ids(1), SamplingParams(max_tokens=2)).finished


def test_a_request_that_fails_in_a_step_fails_alone(tmp_path: Path) -> None:
    """One token's embedding is infinite: whoever has it gets its error, whoever shares its steps gets the same bits."""
    toy, poison = make_toy(), 66
    engine = write_toy_engine(tmp_path / "sound", toy)
    poisoned = write_toy_engine(tmp_path / "poisoned", toy)
    plan = toy.plan()
    table = toy.w["embed"].copy()  # the embedding's own: the output matrix, which it shares, stays sound
    table[poison, 0] = np.inf
    plan.op(EMBEDDING, "poisoned", outs=[0], weights=[plan.panels("poisoned", table)], floats=[1.0])
    plan.instructions[0] = plan.instructions.pop()
    plan.write(poisoned / "cpu")
    seal(poisoned)
    prompts = [[1 + i, 2, 103 + i, 5] for i in range(12)]
    params = [SamplingParams(max_tokens=30, temperature=0, ignore_eos=True, logprobs=1) for _ in prompts]
    with LLM(engine, kv_cache_memory=KV, threads=1, max_batch_size=1) as llm:
        alone = [llm.generate(ids(*prompt), p).outputs[0] for prompt, p in zip(prompts, params, strict=True)]
    with LLM(poisoned, kv_cache_memory=KV, threads=2) as llm:
        handles = []
        for prompt, p in zip(prompts, params, strict=True):
            handles.append((llm.generate_async(ids(*prompt), p), llm.generate_async(ids(4, poison, *prompt), p)))
        for (good, bad), expected in zip(handles, alone, strict=True):
            with pytest.raises(NumericalError, match="logits must be finite"):
                bad.result(PATIENCE)
            got = good.result(PATIENCE).outputs[0]
            assert (got.token_ids, got.logprobs) == (expected.token_ids, expected.logprobs)
        stats = llm.get_stats()
        assert (stats["requests_failed"], stats["used_blocks"], stats["running"]) == (12, 0, 0)
