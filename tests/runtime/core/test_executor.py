"""The cpu executor on plans written by hand: right against numpy, and the same bits in any company."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from support.plan_writer import BF16, F32
from support.ragged import Ragged
from support.toy_llama import ToyLlama
from tensorwright.errors import EngineError, InvalidOptionError, InvalidRequestError, IsaError
from tensorwright.runtime import _runtime

pytestmark = pytest.mark.computes

BLOCKS = 250


def load(model: ToyLlama, folder: Path, threads: int = 2, mode: str = "map") -> _runtime.CpuExecutor:
    plan, weights = model.plan().write(folder)
    return _runtime.CpuExecutor(plan, weights, threads, mode)


def some_ids(count: int, seed: int = 1) -> list[int]:
    return np.random.default_rng(seed).integers(0, 101, count).tolist()


def assert_same_bits(a: np.ndarray, b: np.ndarray) -> None:
    assert a.shape == b.shape
    different = np.argwhere(a.view(np.int32) != b.view(np.int32))
    assert different.size == 0, f"{len(different)} of {a.size} differ, first at {different[0]}"


def logit_tolerance(model: ToyLlama, length: int, logits: np.ndarray) -> float:
    """Rounding errors of all sums on the way to a logit, each eps * its length; bf16 rounds each activation besides."""
    q = model.heads * model.head_dim
    sums = model.layers * (2 * model.hidden + q + model.head_dim + model.inter) + model.hidden + length
    roundings = model.layers * 6 + 2
    error = sums * 2.0**-24 + (roundings * 2.0**-8 / 8 if model.dtype == BF16 else 0)
    return error * float(np.abs(logits).max())


MODELS = {
    "float32": ToyLlama(),
    "bfloat16": ToyLlama(dtype=BF16),
    "windowed": ToyLlama(window=37, max_seq_len=1500),
    "chunked": ToyLlama(window=37, chunked=True, max_seq_len=1500),
    "sink_tokens": ToyLlama(window=37, sink_tokens=19, max_seq_len=1500),
    "multi_head": ToyLlama(heads=3, kv_heads=3, head_dim=24, block_size=64),
    "wide_group": ToyLlama(dtype=BF16, heads=70, kv_heads=1, head_dim=8, block_size=32),
}


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_numpy(name: str, tmp_path: Path) -> None:
    model = MODELS[name]
    ids = some_ids(700)
    expected = model.forward(ids)
    ours = Ragged(load(model, tmp_path), BLOCKS).alone("a", ids)
    assert np.abs(ours - expected).max() <= logit_tolerance(model, len(ids), expected)


@pytest.mark.parametrize("name", MODELS)
def test_ragged_batches_equal_one_sequence_alone(name: str, tmp_path: Path) -> None:
    """Prefill chunks of one sequence beside decode steps of others, past a split of attention, on scattered blocks."""
    model = MODELS[name]
    batch = Ragged(load(model, tmp_path), BLOCKS)
    prompts = {"long": some_ids(580, 2), "short": some_ids(21, 3), "middle": some_ids(140, 4)}
    plans = {"long": [300, 200, *[1] * 80], "short": [20, 1], "middle": [1, 2, 30, 107]}
    waiting = {name: iter(sizes) for name, sizes in plans.items()}
    done: dict[str, list[np.ndarray]] = {name: [] for name in prompts}
    for turn in range(90):
        feeds = []
        for name_, sizes in waiting.items():
            size = next(sizes, 0) if turn % 3 or name_ != "short" else 0
            start = sum(len(rows) for rows in done[name_])
            if size:
                feeds.append((name_, prompts[name_][start : start + size]))
        feeds = feeds[::-1] if turn % 2 else feeds
        rows = batch.step(feeds) if feeds else np.empty((0, model.vocab), np.float32)
        for name_, tokens in feeds:
            done[name_].append(rows[: len(tokens)])
            rows = rows[len(tokens) :]
    for name_, ids in prompts.items():
        ours = np.concatenate(done[name_])
        assert len(ours) == len(ids)
        assert_same_bits(ours, batch.alone(name_ + " alone", ids))


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_threads_and_loading_do_not_change_a_bit(dtype: int, tmp_path: Path) -> None:
    model = ToyLlama(dtype=dtype)
    ids = some_ids(530)
    expected = Ragged(load(model, tmp_path, threads=1), BLOCKS).alone("a", ids)
    for threads, mode, chunk in [(2, "copy", 0), (3, "map", 100), (8, "map", 0)]:
        assert_same_bits(Ragged(load(model, tmp_path, threads, mode), BLOCKS).alone("a", ids, chunk), expected)


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_decode_splits_its_context_over_threads(dtype: int, tmp_path: Path) -> None:
    model = ToyLlama(dtype=dtype)
    ids = some_ids(1601)
    rows = []
    for threads in (1, 2, 5):
        run = Ragged(load(model, tmp_path, threads), BLOCKS)
        run.step([("a", ids[:-1])], rows="none")
        rows.append(run.step([("a", ids[-1:])]))
    assert_same_bits(rows[0], rows[1])
    assert_same_bits(rows[0], rows[2])


def test_float32_gives_the_same_bits_on_every_instruction_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = ToyLlama(window=50)
    ids = some_ids(300)
    expected = Ragged(load(model, tmp_path), BLOCKS).alone("a", ids)
    covered = []
    for isa in ("scalar", "avx2", "avx512"):
        monkeypatch.setenv("TENSORWRIGHT_ISA", isa)
        try:
            executor = load(model, tmp_path)
        except IsaError as error:
            print(f"not covered here: {error}")
            continue
        assert_same_bits(Ragged(executor, BLOCKS).alone("a", ids), expected)
        covered.append(isa)
    assert "scalar" in covered
    monkeypatch.setenv("TENSORWRIGHT_ISA", "sse9")
    with pytest.raises(IsaError, match="sse9"):
        load(model, tmp_path)


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_what_a_block_held_before_does_not_matter(dtype: int, poison: float, tmp_path: Path) -> None:
    """One sequence fills blocks with NaN or infinity and ends; the next one on them gets the bits of fresh ones."""
    model = ToyLlama(dtype=dtype)
    model.w["embed"][100] = poison
    ids = [i % 100 for i in some_ids(75)]
    expected = Ragged(load(model, tmp_path), 5).alone("a", ids, chunk=11)
    run = Ragged(load(model, tmp_path), 5)
    assert not np.isfinite(run.alone("bad", [100] * 80)).any()
    run.release("bad")
    assert_same_bits(run.alone("a", ids, chunk=11), expected)


def test_a_copied_block_carries_the_same_prefix(tmp_path: Path) -> None:
    run = Ragged(load(ToyLlama(), tmp_path), BLOCKS)
    ids = some_ids(40)
    run.step([("a", ids[:39])], rows="none")
    run.tables["b"], run.lengths["b"] = [[run.free[0].pop() for _ in range(3)]], 39
    for source, target in zip(run.tables["a"][0], run.tables["b"][0], strict=True):
        run.executor.copy_block(0, source, int(target))
    together = run.step([("a", ids[39:]), ("b", ids[39:])])
    assert_same_bits(together[:1], together[1:])


def test_steps_without_rows_or_tokens(tmp_path: Path) -> None:
    run = Ragged(load(ToyLlama(), tmp_path), BLOCKS)
    assert run.step([("a", [1, 2, 3])], rows="none").shape == (0, 101)
    assert run.step([]).shape == (0, 101)
    with pytest.raises(InvalidRequestError, match="seq_starts must rise, goes from 0 to 0 at sequence 0"):
        run.step([("a", []), ("b", [5])])


@pytest.mark.parametrize(("chunked", "sinks", "seen"), [(False, 0, 190 - 37 + 1), (True, 0, 185), (False, 19, 154)])
def test_blocks_behind_the_window_may_be_given_up(chunked: bool, sinks: int, seen: int, tmp_path: Path) -> None:
    """All but those of sink tokens, of which 19 take two blocks."""
    model = ToyLlama(window=37, chunked=chunked, sink_tokens=sinks)
    ids = some_ids(200)
    expected = Ragged(load(model, tmp_path), BLOCKS).alone("a", ids)
    run = Ragged(load(model, tmp_path), BLOCKS)
    run.step([("a", ids[:190])], rows="none")
    arguments = run.arguments([("a", ids[190:])])
    table, slots = arguments["groups"][1]
    table = table.copy()
    table[0, -(-sinks // model.block_size) : seen // model.block_size] = -1
    arguments["groups"][1] = (table, slots)
    assert_same_bits(run.executor.step(**arguments), expected[190:])
    table[0, seen // model.block_size] = -1
    with pytest.raises(InvalidRequestError, match="group 1: block_tables"):
        run.executor.step(**arguments)


def test_facts_profile_and_dispatch(tmp_path: Path) -> None:
    executor = load(ToyLlama(), tmp_path)
    facts = executor.facts()
    assert (facts["vocab_size"], facts["max_seq_len"], facts["block_size"]) == (101, 2048, 16)
    assert facts["block_bytes"] == [2 * 2 * 2 * 16 * 16 * 4]
    assert facts["threads"] == 2
    run = Ragged(executor, BLOCKS)
    executor.profile(True)
    run.step([("a", some_ids(9))])
    run.step([("a", some_ids(1))])
    executor.profile(False)
    run.step([("a", some_ids(1))])
    table = {row["name"]: row for row in executor.profile_table()}
    head = table["lm_head"]
    assert head["op"] == "matmul"
    assert head["calls"] == 2
    assert head["ns"] > 0
    assert head["ops"] == 2 * (9 + 1) * 112 * 56
    assert head["bytes"] >= 2 * 112 * 56 * 4
    assert table["0.attention"]["ops"] > 0
    assert any(row["family"] == "rms_norm" and row["taken"].startswith("rms_norm") for row in executor.dispatch())


def test_steps_from_several_python_threads_take_turns(tmp_path: Path) -> None:
    run = Ragged(load(ToyLlama(), tmp_path), BLOCKS)
    arguments = [run.arguments([(str(i), some_ids(30, seed=i))]) for i in range(3)]
    expected = [run.executor.step(**a) for a in arguments]
    results: list[list[np.ndarray]] = [[], [], []]

    def work(i: int) -> None:
        results[i] += [run.executor.step(**arguments[i]) for _ in range(10)]

    workers = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for i in range(3):
        assert len(results[i]) == 10
        for logits in results[i]:
            assert_same_bits(logits, expected[i])


def test_impossible_options_are_refused(tmp_path: Path) -> None:
    plan, weights = ToyLlama().plan().write(tmp_path)
    with pytest.raises(InvalidOptionError, match="load must be 'map' or 'copy', is 'mmap'"):
        _runtime.CpuExecutor(plan, weights, 1, "mmap")
    with pytest.raises(InvalidOptionError, match="threads"):
        _runtime.CpuExecutor(plan, weights, -1, "map")
    with pytest.raises(EngineError, match=r"missing\.bin: cannot be opened"):
        _runtime.CpuExecutor(str(tmp_path / "missing.bin"), weights, 1, "map")
    with pytest.raises(EngineError, match=r"plan\.bin: must have .* bytes"):
        _runtime.CpuExecutor(plan, plan, 1, "map")
