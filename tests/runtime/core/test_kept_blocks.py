"""Blocks of the KV cache that a sequence keeps by their scores: which these are, and that no bit depends on anything
but the sequence's own tokens."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.plan_writer import BF16
from support.ragged import Ragged
from support.toy_llama import ToyLlama
from tensorwright.errors import EngineError, InvalidRequestError
from tensorwright.runtime import _runtime

BLOCKS = 400
INTERVAL = 64
# Keeps 7 blocks of 16 positions at each multiple of 64: the first one, the last two, and four by their scores.
TOY = ToyLlama(budget=(7, 1, 2, INTERVAL), max_seq_len=1500)


def load(model: ToyLlama, folder: Path, threads: int = 2) -> _runtime.CpuExecutor:
    plan, weights = model.plan().write(folder)
    return _runtime.CpuExecutor(plan, weights, threads, "map")


def some_ids(count: int, seed: int = 1) -> list[int]:
    return np.random.default_rng(seed).integers(0, 101, count).tolist()


def assert_same_bits(a: np.ndarray, b: np.ndarray) -> None:
    np.testing.assert_array_equal(a.view(np.int32), b.view(np.int32))


@pytest.mark.parametrize("budget", [TOY.budget, (5, 0, 1, 32), (40, 2, 8, 128)])
def test_rows_and_blocks_are_those_of_numpy(budget: tuple[int, int, int, int], tmp_path: Path) -> None:
    """Past splits of attention of which nothing is left, and past where a budget of 40 blocks is full."""
    model = replace(TOY, budget=budget)
    ids = some_ids(1300)
    run = Ragged(load(model, tmp_path), BLOCKS)
    interval = budget[3]
    expected, after = model.forward_within_budget(ids)
    ours = []
    for number, begin in enumerate(range(0, len(ids), interval)):
        ours.append(run.step([("a", ids[begin : begin + interval])]))
        gone = run.executor.gone_blocks(0, run.state_slots["a"])
        assert {int(block) for block in np.flatnonzero(gone)} == after[number]
    assert len(after[-1]) >= 1300 // 16 - budget[0] - interval // 16
    tolerance = 2e-4 * float(np.abs(expected).max())
    assert np.abs(np.concatenate(ours) - expected).max() <= tolerance
    full = replace(model, budget=None).forward(ids)
    assert np.abs(full - expected)[-1].max() > 100 * tolerance, "what is gone must matter"


@pytest.mark.parametrize("dtype", [0, BF16])
def test_company_chunks_and_threads_change_no_bit(dtype: int, tmp_path: Path) -> None:
    model = replace(TOY, dtype=dtype)
    ids = {"long": some_ids(700, 2), "short": some_ids(150, 3)}
    run = Ragged(load(model, tmp_path, threads=1), BLOCKS)
    alone = {name: run.alone(name, tokens) for name, tokens in ids.items()}
    for threads, chunk in ((1, 1), (3, 23), (2, 64)):
        run = Ragged(load(model, tmp_path, threads), BLOCKS)
        done: dict[str, list[np.ndarray]] = {name: [] for name in ids}
        while feeds := [
            (name, tokens[at : min(at + size, (at // INTERVAL + 1) * INTERVAL)])
            for name, tokens, size in (("long", ids["long"], chunk), ("short", ids["short"], 5))
            if (at := run.lengths.get(name, 0)) < len(tokens)
        ]:
            rows = run.step(feeds)
            for name, tokens in feeds:
                done[name].append(rows[: len(tokens)])
                rows = rows[len(tokens) :]
        for name, parts in done.items():
            assert_same_bits(np.concatenate(parts), alone[name])


def test_blocks_that_are_gone_may_be_given_up(tmp_path: Path) -> None:
    """What stands in the table in their place is not read."""
    ids = some_ids(500)
    run = Ragged(load(TOY, tmp_path), BLOCKS)
    expected = run.alone("whole", ids)
    run.alone("a", ids[:450])
    gone = np.flatnonzero(run.executor.gone_blocks(0, run.state_slots["a"]))
    assert len(gone) > 10
    other = run.free[0][-1]
    for block in gone:
        run.tables["a"][0][block] = other
    assert_same_bits(run.alone("a", ids), expected[450:])


def test_a_sequence_starts_with_no_scores(tmp_path: Path) -> None:
    """Whatever the sequence before it left in its slot."""
    run = Ragged(load(TOY, tmp_path), BLOCKS, max_seqs=1)
    ids = some_ids(400)
    first = run.alone("a", ids)
    run.release("a")
    run.alone("b", some_ids(350, 9))
    run.release("b")
    assert_same_bits(run.alone("c", ids), first)


def test_a_step_across_a_decision_is_refused(tmp_path: Path) -> None:
    run = Ragged(load(TOY, tmp_path), BLOCKS)
    run.step([("a", some_ids(60))])
    with pytest.raises(InvalidRequestError, match="positions 60 to 64; a step must not cross a multiple of 64"):
        run.step([("a", some_ids(5))])
    run.step([("a", some_ids(4))])


@pytest.mark.parametrize(
    ("budget", "fault"),
    [
        ((3, 1, 2, 64), "kept must be at most 94 blocks and more than sinks and recent"),
        ((7, 1, 0, 64), "kept must be at most 94 blocks"),
        ((95, 1, 2, 64), "kept must be at most 94 blocks"),
        ((7, 1, 2, 40), "interval must be a multiple of 16 positions, is 40"),
        ((0, 1, 2, 64), r"ints\[3\] must be 0 without a budget"),
    ],
)
def test_plans_with_impossible_budgets_are_refused(
    budget: tuple[int, int, int, int], fault: str, tmp_path: Path
) -> None:
    with pytest.raises(EngineError, match=fault):
        load(replace(TOY, budget=budget), tmp_path)


def some_load(count: int) -> list[tuple[list[int], Any]]:
    """Prompts that share beginnings, and answers, of which most pass several decisions."""
    draw = random.Random(3)
    stem = some_ids(200, 7)
    load = []
    for i in range(count):
        sampling = _runtime.Sampling()
        sampling.max_tokens, sampling.logprobs = draw.randrange(1, 120), 2
        sampling.temperature, sampling.seed = (0.8, i) if i % 2 else (0.0, None)
        load.append((stem[: draw.choice([0, 48, 130, 200])] + some_ids(draw.randrange(1, 150), 100 + i), sampling))
    return load


def answers(paths: tuple[str, str], load: list[tuple[list[int], Any]], **changes: Any) -> tuple[Any, dict[str, Any]]:
    """What an engine answers to each request, and its statistics at the end."""
    options = _runtime.EngineOptions()
    options.kv_cache_bytes, options.max_batch_size, options.max_num_tokens = 1 << 24, 6, 96
    options.threads, options.state_snapshots = 1, 12
    for name, value in changes.items():
        setattr(options, name, value)
    engine = _runtime.Engine(*paths, options)
    for i, (prompt, sampling) in enumerate(load):
        engine.submit(i, prompt, sampling)
    told: list[list[Any]] = [[] for _ in load]
    ended = 0
    while ended < len(load):
        for event in engine.wait_events(0.5):
            assert event.finish in ("", "length", "stop"), event.error
            told[event.request_id] += zip(event.tokens, event.logprobs, strict=True)
            ended += bool(event.finish)
    stats = engine.stats()
    engine.shutdown(False)
    (group,) = stats["groups"]
    assert group["used_blocks"] == 0
    assert group["free_blocks"] + group["cached_blocks"] == group["total_blocks"]
    assert stats["invariant_violations"] == 0
    return told, stats


def test_scheduling_changes_no_bit(tmp_path: Path) -> None:
    paths = TOY.plan().write(tmp_path)
    block_bytes = sum(_runtime.CpuExecutor(*paths).facts()["block_bytes"])
    load = some_load(24)
    solo, stats = answers(paths, load, max_batch_size=1, prefix_cache=False)
    assert stats["groups"][0]["total_blocks"] == 7 + INTERVAL // 16, "a sequence holds no more"
    preempted, hits = [], []
    for changes in (
        {"max_chunk": 7, "threads": 2},
        {"debug_preempt_every": 3, "debug_seed": 4},
        {"debug_preempt_every": 2, "debug_seed": 5, "prefix_cache": False},
        {"kv_cache_bytes": 22 * block_bytes, "max_num_tokens": 32},
        {"kv_cache_bytes": 22 * block_bytes, "prefix_cache": False},
    ):
        told, stats = answers(paths, load, **changes)
        assert told == solo, changes
        preempted.append(stats["preemptions"])
        hits.append(stats["state_snapshot_hits"])
    assert min(preempted[1:]) > 0
    assert hits[0] > 0
