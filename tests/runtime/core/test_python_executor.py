"""Executors written in Python behind the C++ engine: right tokens, typed errors, and no way to hang it."""

from __future__ import annotations

import gc
import re
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from support.toy_executor import VOCAB, ToyExecutor, collect, continuation, options, sampling
from support.waiting import PATIENCE, wait_until
from tensorwright.errors import (
    InvalidOptionError,
    InvalidRequestError,
    OutOfMemoryError,
    TensorwrightError,
)
from tensorwright.runtime import _runtime


def prompts(count: int = 24) -> list[list[int]]:
    rng = np.random.default_rng(5)
    stem = rng.integers(VOCAB, size=40).tolist()
    return [stem[: [0, 16, 40][i % 3]] + rng.integers(VOCAB, size=1 + 3 * i % 31).tolist() for i in range(count)]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"prefix_cache": False, "max_chunk": 7},
        {"blocks": 12, "max_num_tokens": 8},
        {"debug_preempt_every": 2, "debug_seed": 4},
        {"block_size": 256, "blocks": 4},  # a block per sequence, as slot caches have
        {"block_size": 256, "blocks": 4, "debug_preempt_every": 2, "max_chunk": 5},
    ],
)
def test_the_scheduler_drives_it_to_the_right_tokens(start: Any, changes: dict[str, Any]) -> None:
    executor = ToyExecutor(block_size=changes.pop("block_size", 16))
    engine = start(executor, **changes)
    for i, prompt in enumerate(prompts()):
        engine.submit(i, prompt, sampling(20 + i))
    tokens, _ = collect(engine, 24)
    for i, prompt in enumerate(prompts()):
        assert tokens[i, 0] == continuation(prompt, 20 + i), f"request {i}"
    stats = engine.stats()
    assert 4 <= max(executor.batches) <= (4 if executor.block_size == 256 else 8)
    assert (stats["preemptions"] > 0) == ("debug_preempt_every" in changes or changes.get("blocks") == 12)
    caching = changes.get("prefix_cache", True) and executor.block_size == 16
    assert (stats["prefix_hit_tokens"] > 0) == caching
    assert stats["used_blocks"] == 0
    limits = (changes.get("max_num_tokens", 64), min(72, changes.get("max_num_tokens", 64)), 8)
    assert executor.limits == limits


def test_threads_draw_the_same_tokens(start: Any) -> None:
    drawn = []
    for threads in (1, 3):
        engine = start(ToyExecutor(change=lambda logits: logits * 5), threads=threads)
        for i, prompt in enumerate(prompts(8)):
            engine.submit(i, prompt, sampling(20, temperature=1.0, top_p=0.9, seed=i))
        drawn.append(collect(engine, 8)[0])
    assert drawn[0] == drawn[1]
    assert any(drawn[0][i, 0] != continuation(prompt, 20) for i, prompt in enumerate(prompts(8)))


def test_forks_copy_blocks_and_aborts_free_them(start: Any) -> None:
    executor = ToyExecutor()
    engine = start(executor)
    engine.submit(1, [1, 2, 3], sampling(30, n=3, temperature=1.0, seed=1))
    engine.submit(2, [4, 5], sampling(200))
    executor_gate = threading.Event()
    executor.hook = lambda step: executor_gate.wait(PATIENCE)
    assert engine.abort(2)
    executor_gate.set()
    tokens, last = collect(engine, 4)
    assert last[2, 0].finish == "abort"
    assert executor.copies >= 2
    assert [len(tokens[1, completion]) for completion in range(3)] == [30, 30, 30]
    wait_until(lambda: engine.stats()["used_blocks"] == 0)


@pytest.mark.parametrize(
    ("raised", "kind", "message"),
    [
        (lambda: OutOfMemoryError("the device is full"), "OutOfMemoryError", "the device is full"),
        (lambda: ValueError("odd"), "TensorwrightError", "[executor] run raised ValueError: odd"),
        (MemoryError, "OutOfMemoryError", "[executor] run raised MemoryError"),
        (KeyboardInterrupt, "TensorwrightError", "[executor] run raised KeyboardInterrupt"),
    ],
)
def test_what_it_raises_ends_the_request_at_fault_and_no_other(
    start: Any, raised: Callable[[], BaseException], kind: str, message: str
) -> None:
    def fail_at_99(step: Any) -> None:
        if 99 in step.token_ids:
            raise raised()

    engine = start(ToyExecutor(hook=fail_at_99), prefix_cache=False)
    good = [i for i in range(5) if 99 not in [i, i + 1, *continuation([i, i + 1], 11)]]
    for i in good:
        engine.submit(i, [i, i + 1], sampling(12))
    engine.submit(50, [99], sampling(12))
    tokens, last = collect(engine, len(good) + 1)
    assert len(good) > 2
    assert (last[50, 0].finish, last[50, 0].error_type, last[50, 0].error) == ("error", kind, message)
    for i in good:
        assert (last[i, 0].finish, tokens[i, 0]) == ("length", continuation([i, i + 1], 12))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda logits: logits[:, :-1].copy(), r"shape \(1, 101\), returned float32 of shape \(1, 100\)"),
        (lambda logits: np.vstack([logits, logits]), r"returned float32 of shape \(2, 101\)"),
        (lambda logits: logits.astype(np.float64), r"returned float64 of shape \(1, 101\)"),
        (lambda logits: np.zeros((1, 2 * VOCAB), np.float32)[:, ::2], "not C-contiguous"),
        (lambda logits: logits[0], r"returned float32 of shape \(101,\)"),
        (lambda logits: None, "returned <class 'NoneType'>"),
    ],
)
def test_a_wrong_result_is_refused_by_what_it_is(start: Any, change: Any, said: str) -> None:
    engine = start(ToyExecutor(change=change))
    engine.submit(1, [1, 2], sampling(2))
    _, last = collect(engine, 1)
    assert last[1, 0].error_type == "TensorwrightError"
    assert re.search(said, last[1, 0].error), last[1, 0].error


def test_a_step_is_a_read_only_view_that_may_be_kept(start: Any) -> None:
    steps: list[Any] = []
    engine = start(ToyExecutor(hook=steps.append), max_chunk=4)
    engine.submit(1, [7, 8, 9, 10, 11, 12], sampling(2))
    collect(engine, 1)
    first, second = steps[0], steps[1]
    assert first.token_ids.tolist() == [7, 8, 9, 10]
    assert first.logit_rows.shape == (0,)
    assert (second.positions.tolist(), second.seq_starts.tolist()) == ([4, 5], [0, 2])
    assert (second.context_lens.tolist(), second.logit_rows.tolist()) == ([6], [1])
    assert (second.block_tables(0).shape, second.groups) == ((1, 1), 1)
    assert second.slots(0).tolist() == [second.block_tables(0)[0, 0] * 16 + at for at in (4, 5)]
    assert {view.dtype for view in (second.token_ids, second.block_tables(0))} == {np.dtype(np.int32)}
    with pytest.raises(ValueError, match="read-only"):
        first.token_ids[0] = 1
    with pytest.raises(InvalidRequestError, match="group must be 0 to 0, is 1"):
        first.slots(1)
    kept = first.token_ids
    steps.clear()
    del first, second
    gc.collect()
    assert kept.tolist() == [7, 8, 9, 10]


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"vocab_size": 0}, "must be positive, are 0, 256 and 16"),
        ({"block_bytes": [1, 2]}, "one entry per cache group, have 2 and 1"),
        ({"block_bytes": [0]}, "block_bytes must be positive"),
        ({"state_bytes": 64}, "state_bytes must be 0 or absent: only target cpu keeps the states of recurrent layers"),
        ({"group_windows": [-1]}, "group_windows must not be negative"),
        ({"max_seq_len": "long"}, r"\['max_seq_len'\] must hold integers, is 'long'"),
        (None, "must have max_seq_len, has none"),
    ],
)
def test_facts_are_checked(start: Any, facts: dict[str, Any] | None, said: str) -> None:
    executor = ToyExecutor()
    made, right = options(executor), executor.facts()
    wrong = {"vocab_size": 1} if facts is None else right | facts
    executor.facts = lambda: wrong  # type: ignore[method-assign]
    with pytest.raises(TensorwrightError, match=said):
        _runtime.Engine(executor, made)


def test_what_does_not_apply_is_refused(start: Any) -> None:
    engine = start(ToyExecutor())
    for call in (lambda: engine.profile(True), engine.profile_table, engine.profile_steps):
        with pytest.raises(InvalidOptionError, match="only an engine of target cpu"):
            call()
    with pytest.raises(InvalidOptionError, match="load is an option of the cpu executor, got 'copy'"):
        start(ToyExecutor(), load="copy")
    with pytest.raises(InvalidOptionError, match="numa is an option of the cpu executor, got 'split'"):
        start(ToyExecutor(), numa="split")
    with pytest.raises(TensorwrightError, match="must have the method facts, <class 'object'> has none"):
        _runtime.Engine(object(), options(ToyExecutor()))


def test_a_failing_allocation_is_told_and_closed(start: Any) -> None:
    class Full(ToyExecutor):
        def allocate(self, *sizes: Any) -> None:
            raise OutOfMemoryError("no room for the KV cache")

    executor = Full()
    with pytest.raises(OutOfMemoryError, match="no room for the KV cache"):
        start(executor)
    assert executor.closed.is_set()
