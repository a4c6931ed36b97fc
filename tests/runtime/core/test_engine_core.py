"""The C++ engine on a toy plan: the crowd's tokens and logprobs equal the solo run's, and both the numpy model's."""

from __future__ import annotations

import gc
import random
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

from support.toy_llama import ToyLlama
from support.waiting import PATIENCE
from tensorwright.errors import (
    EngineError,
    EngineStoppedError,
    InvalidOptionError,
    InvalidRequestError,
    OutOfMemoryError,
    PromptTooLongError,
    QueueFullError,
)
from tensorwright.runtime import _runtime
from tensorwright.runtime.requests.engine_client import SHUT_DOWN

pytestmark = pytest.mark.computes

BLOCKS = 40


@pytest.fixture(scope="module")
def toy():
    return ToyLlama(max_seq_len=256, window=24)


@pytest.fixture(scope="module")
def paths(toy, tmp_path_factory):
    return toy.plan().write(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="module")
def block_bytes(paths):
    return sum(_runtime.CpuExecutor(*paths).facts()["block_bytes"])


@pytest.fixture
def make(paths, block_bytes):
    """Engines with `blocks` KV blocks; they are shut down at the end."""
    engines = []

    def start(blocks: int = BLOCKS, **changes: Any):
        options = _runtime.EngineOptions()
        options.kv_cache_bytes = blocks * block_bytes
        options.max_batch_size, options.max_num_tokens, options.threads = 8, 64, 1
        for name, value in changes.items():
            setattr(options, name, value)
        engines.append(_runtime.Engine(*paths, options))
        return engines[-1]

    yield start
    for engine in engines:
        engine.shutdown(False)


def sampling(max_tokens: int, **changes: Any):
    s = _runtime.Sampling()
    s.max_tokens, s.temperature = max_tokens, 0.0
    for name, value in changes.items():
        setattr(s, name, value)
    return s


def collect(engine, count: int, limit: float = 60.0) -> dict[int, dict[str, Any]]:
    """Everything `count` requests were told until their ends."""
    told: dict[int, dict[str, Any]] = {}
    deadline, ended = time.monotonic() + limit, 0
    while ended < count:
        assert time.monotonic() < deadline, f"{ended} of {count} requests ended"
        for event in engine.wait_events(0.5):
            entry = told.setdefault(event.request_id, {"tokens": [], "logprobs": []})
            assert "last" not in entry
            entry["tokens"] += event.tokens
            entry["logprobs"] += event.logprobs
            if event.finish:
                entry["last"] = event
                ended += 1
    return told


def random_load(count: int, seed: int) -> list[tuple[list[int], Any]]:
    rng = random.Random(seed)
    stem = [rng.randrange(101) for _ in range(64)]
    load = []
    for i in range(count):
        prompt = stem[: rng.choice([0, 16, 40, 64])] + [rng.randrange(101) for _ in range(rng.randrange(1, 40))]
        changes: dict[str, Any] = {"logprobs": rng.choice([-1, 0, 3])}
        if i % 2:
            changes |= {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "seed": i}
        load.append((prompt, sampling(rng.randrange(1, 40), **changes)))
    return load


def run(engine, load) -> list[tuple[list[int], list]]:
    for i, (prompt, params) in enumerate(load):
        engine.submit(i, np.array(prompt, np.int32) if i % 2 else prompt, params)
    told = collect(engine, len(load))
    stats = engine.stats()
    assert stats["used_blocks"] == 0
    assert stats["free_blocks"] + stats["cached_blocks"] == stats["total_blocks"]
    assert stats["max_waste_slots_per_sequence"] < stats["block_size"]
    return [(told[i]["tokens"], told[i]["logprobs"]) for i in range(len(load))]


@pytest.fixture(scope="module")
def load():
    return random_load(30, 3)


@pytest.fixture(scope="module")
def solo(paths, load):
    """One at a time, whole prompts, nothing cached."""
    options = _runtime.EngineOptions()
    options.kv_cache_bytes, options.max_batch_size, options.max_num_tokens = 1 << 24, 1, 256
    options.threads, options.prefix_cache = 1, False
    return run(_runtime.Engine(*paths, options), load)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"max_chunk": 1, "prefix_cache": False},
        {"max_chunk": 7, "threads": 2},
        {"debug_preempt_every": 2, "debug_seed": 4},
        {"debug_preempt_every": 1, "prefix_cache": False, "blocks": 12},
        {"blocks": 9, "max_num_tokens": 8},
    ],
)
def test_company_chunks_prefixes_and_preemption_change_nothing(make, load, solo, changes):
    engine = make(**changes)
    assert run(engine, load) == solo
    if engine.facts()["blocks"][0] < BLOCKS or "debug_preempt_every" in changes:
        assert engine.stats()["preemptions"] > 0
    if changes.get("prefix_cache", True) and "blocks" not in changes:
        assert engine.stats()["prefix_hit_tokens"] > 0


def test_greedy_tokens_are_those_of_the_model(make, toy, load):
    engine = make()
    for i, (prompt, params) in enumerate(load[:6:2]):
        engine.submit(i, prompt, params)
        tokens = collect(engine, 1)[i]["tokens"]
        logits = toy.forward(prompt + tokens)
        for position, token in enumerate(tokens, len(prompt) - 1):
            # Random weights leave gaps of far more than an fp32 engine's error.
            assert logits[position].max() - logits[position][token] < 1e-4


def flood(engine) -> None:
    for i in range(1, 1000):
        engine.submit(i, [1], sampling(60))


def test_typed_errors(make, paths):
    engine = make(blocks=4, max_queue=1, max_batch_size=1)
    with pytest.raises(PromptTooLongError, match="raise kv_cache_memory"):
        engine.submit(1, [1] * 60, sampling(6))
    with pytest.raises(PromptTooLongError, match="max_seq_len"):
        engine.submit(1, [1] * 250, sampling(7))
    with pytest.raises(InvalidRequestError, match="prompt"):
        engine.submit(1, [], sampling(1))
    with pytest.raises(InvalidRequestError, match="list of int32"):
        engine.submit(1, "words", sampling(1))
    with pytest.raises(InvalidRequestError, match="max_tokens"):
        engine.submit(1, [1], sampling(0))
    with pytest.raises(QueueFullError, match=r"max_batch_size \+ max_queue_size"):
        flood(engine)
    engine.shutdown(False)
    with pytest.raises(EngineStoppedError, match="shut down"):
        engine.submit(5000, [1], sampling(1))
    with pytest.raises(OutOfMemoryError, match="at least one block"):
        make(blocks=0)
    with pytest.raises(InvalidOptionError, match="max_num_tokens must be at least max_batch_size 8"):
        make(max_num_tokens=7)
    with pytest.raises(InvalidOptionError, match="load"):
        make(load="teleport")
    with pytest.raises(EngineError):
        _runtime.Engine("/nowhere/plan.bin", paths[1], _runtime.EngineOptions())


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"max_queue": 0}, "max_queue_size must be at least 1, got 0"),
        ({"kv_cache_bytes": -1}, "kv_cache_memory must not be negative, got -1"),
        ({"kv_cache_bytes": 1}, "kv_cache_memory must hold at least one block of"),
        ({"max_chunk": -1}, "max_prefill_chunk must be 0"),
    ],
)
def test_messages_use_the_names_of_llm(make, option, said):
    with pytest.raises((InvalidOptionError, OutOfMemoryError), match=said):
        make(**option)


def test_abort_and_events(make):
    engine = make(max_batch_size=1)
    for i in range(40):  # thousands of steps of work before the last one's turn: the abort comes in time
        engine.submit(i, [1, 2, 3], sampling(200))
    assert engine.abort(39)
    told = collect(engine, 40)
    assert (told[39]["last"].finish, told[39]["tokens"], told[39]["last"].queue_s) == ("abort", [], -1)
    first = told[0]["last"]
    assert (first.finish, first.prompt_tokens, len(told[0]["tokens"])) == ("length", 3, 200)
    assert 0 <= first.queue_s <= first.first_token_s
    assert not engine.abort(39)
    assert engine.stats()["used_blocks"] == 0
    engine.submit(1, [1, 2, 3], sampling(5, eos_token_ids=list(range(101))))
    last = collect(engine, 1)[1]["last"]
    assert (last.finish, last.stop_token) == ("stop", last.tokens[-1])


def test_an_engine_may_go_at_any_moment(make, paths):
    for wait in (0.0, 0.01, 0.03):
        engine = make()
        waiter = threading.Thread(target=lambda engine=engine: engine.wait_events(30))
        waiter.start()
        for i in range(4):
            engine.submit(i, [1, 2, 3], sampling(200))
        time.sleep(wait)
        engine.shutdown(False)
        waiter.join(PATIENCE)
        assert not waiter.is_alive()
        assert engine.stopped
        assert engine.cause == SHUT_DOWN
    options = _runtime.EngineOptions()
    options.kv_cache_bytes, options.max_num_tokens = 1 << 24, 64
    engine = _runtime.Engine(*paths, options)
    engine.submit(1, [1, 2, 3], sampling(200))
    del engine
    gc.collect()


def test_the_interpreter_may_end_with_an_engine_at_work(paths):
    program = f"""
from tensorwright.runtime import _runtime
o = _runtime.EngineOptions()
o.kv_cache_bytes, o.max_num_tokens = 1 << 24, 64
engine = _runtime.Engine({paths[0]!r}, {paths[1]!r}, o)
s = _runtime.Sampling()
s.max_tokens = 200
engine.submit(1, [1, 2, 3], s)
print("started", end="")
"""
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout) == (0, "started"), done.stderr
