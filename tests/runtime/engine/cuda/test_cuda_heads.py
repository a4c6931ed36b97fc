"""Proposals on target cuda: what of a plan with heads is started when, over a stand-in of the driver, and whole
generations, whose kernels Triton's interpreter computes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.cuda_generation import Computer, executor_of, generate, write_engine
from support.cuda_heads import case_of, make_case, make_right_layer
from support.fake_libcuda import FakeDevice, Started
from support.made_cuda_plan import (
    BLOCK,
    DRAFT_VOCAB,
    DRAW_KERNEL,
    FEATURE_KERNEL,
    HEADS_KERNEL,
    MAX_SEQS,
    MAX_TOKENS,
    WIDTH,
    ints,
    made_plan,
    step_of,
    with_heads,
    write_plan,
)
from tensorwright.errors import DeviceError, EngineError, InvalidOptionError, InvalidRequestError
from tensorwright.passes.rewriting.join_draft_heads import model_of
from tensorwright.plugins.draw_tokens.op import FIELDS, reference
from tensorwright.plugins.gpu.interpret import Interpreter
from tensorwright.runtime import _runtime

BLOCKS = 160


@pytest.fixture
def device(library: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDevice]:
    monkeypatch.setenv("TENSORWRIGHT_LIBCUDA", str(library))
    device = FakeDevice(library)
    yield device
    assert device.faults == []
    assert device.live == 0, "memory is not freed"


def opened(device: FakeDevice, folder: Path, graphs: bool = True, **changes: Any) -> Any:
    plan = replace(with_heads(made_plan()), **changes)
    path, weights = write_plan(folder, plan)
    executor = _runtime.CudaExecutor(str(path), str(weights), 0, (str(device.library),), graphs)
    executor.allocate([BLOCKS], MAX_TOKENS, MAX_SEQS, MAX_SEQS)
    return executor


def kernels(device: FakeDevice) -> list[int]:
    """What was started since the last call; -1 is a product."""
    found = [one.kernel for one in device.started]
    device.started.clear()
    return found


def test_each_part_of_a_plan_is_started_where_it_is_wanted(device: FakeDevice, tmp_path: Path) -> None:
    executor = opened(device, tmp_path)
    facts = executor.facts()
    assert (facts["draft_vocab"], facts["draft_width"]) == (DRAFT_VOCAB, WIDTH)
    assert facts["block_bytes"] == [64 + 128 + 2 * BLOCK * WIDTH], "features lie in the blocks"
    executor.step(*step_of([5, 1]))
    assert kernels(device) == [0, -1]
    executor.want_features(True)
    executor.step(*step_of([5, 1]))
    assert kernels(device) == [0, -1, FEATURE_KERNEL]
    executor.draw_step(*step_of([5, 1]), [(0.0, 0, 1.0, 0.0, 0.0)] * 2)
    assert kernels(device) == [0, -1, DRAW_KERNEL, FEATURE_KERNEL]
    tokens, logits = executor.draft_step(*step_of([5, 1]))
    assert (tokens, logits.shape) == ([-1, -1], (2, DRAFT_VOCAB))
    assert kernels(device) == [HEADS_KERNEL, -1]
    with pytest.raises(InvalidRequestError, match="run_draft: an engine that draws tokens takes how for each of 2"):
        executor.draft_step(*step_of([5, 1]), [None])
    executor.want_features(False)
    executor.step(*step_of([5, 1]))
    assert kernels(device) == [0, -1]
    assert executor.counters()["head_steps"] == 1
    executor.close()


@pytest.mark.parametrize("graphs", [True, False])
def test_the_tokens_of_heads_are_drawn_on_the_device(device: FakeDevice, tmp_path: Path, graphs: bool) -> None:
    """Of rows with a token, the token travels alone; a row that the device is not sure of travels after all."""
    given = np.array([[0, 3, 1, 2], [5, 0, 1, 1], [0, 0, 0, 0]], np.float32)

    def run(one: Started) -> None:
        if one.kernel < 0 and one.values[1] == DRAFT_VOCAB:
            ctypes.memmove(one.values[9], given.ctypes.data, given.nbytes)
        elif one.kernel == DRAW_KERNEL:
            fields = ints(one.values[1], 3 * len(FIELDS)).reshape(3, -1)
            logits = np.frombuffer(ctypes.string_at(one.values[0], given.nbytes), np.float32).reshape(given.shape)
            (tokens,) = reference([logits, fields], {}, "float32")
            ctypes.memmove(one.values[2], tokens.ctypes.data, tokens.nbytes)

    device.run = run
    executor = opened(device, tmp_path, graphs)
    for _ in range(3):
        tokens, logits = executor.draft_step(
            *step_of([1] * 3, context=2), [(0.0, 0, 1.0, 0.0, 0.0), None, (1.0, 0, 1.0, 0.0, 0.5)]
        )
        assert tokens == [1, -1, -1]
        assert logits[1:].tolist() == given[1:].tolist()
        assert np.isnan(logits[0]).all()
    executor.close()


def test_parts_are_replayed_apart_from_each_other(device: FakeDevice, tmp_path: Path) -> None:
    executor = opened(device, tmp_path)
    step = step_of([1] * 3, context=6)
    runs: list[tuple[bool, Callable[..., Any]]] = [
        (False, executor.step), (True, executor.step), (False, executor.draft_step)
    ]  # fmt: skip
    for features, run in runs:
        executor.want_features(features)
        seen = []
        for _ in range(3):
            run(*step)
            seen.append(kernels(device))
        assert seen == [seen[0]] * 3
    counters = executor.counters()
    assert (counters["eager"], counters["captured"], counters["replayed"]) == (3, 3, 6)
    executor.close()


@pytest.mark.parametrize("graphs", [True, False])
def test_heads_get_the_slots_of_their_tokens_and_those_behind_the_rows(
    device: FakeDevice, tmp_path: Path, graphs: bool
) -> None:
    """Of a sequence without a block behind its row, and of padding, that is a slot of the block of padding."""
    found: dict[str, list[int]] = {}

    def run(one: Started) -> None:
        if one.kernel == HEADS_KERNEL:
            found.update(
                slots=ints(one.values[1], one.grid[0]).tolist(), behind=ints(one.values[2], one.grid[0]).tolist()
            )

    device.run = run
    executor = opened(device, tmp_path, graphs)
    step = step_of([1] * 17, context=1)
    (_, slots) = step[5][0]
    for _ in range(3):
        executor.draft_step(*step)
        padding = [BLOCKS * BLOCK] if graphs else []
        assert found == {"slots": [*slots, *padding], "behind": [*(slot + 1 for slot in slots), *padding]}
    last = step_of([3, 4, 2])
    executor.draft_step(*last)
    assert found["behind"] == [0 * BLOCK + 3, BLOCKS * BLOCK, 2 * BLOCK + 2], "the second has no further block"
    executor.close()


def test_features_are_copied_with_their_blocks(device: FakeDevice, tmp_path: Path) -> None:
    executor = opened(device, tmp_path)
    size = 2 * BLOCK * WIDTH
    pages = [at for at, total in device.pieces().items() if total == size * (BLOCKS + 1)]
    assert len(pages) == 1 or size == 128
    for at in pages:
        ctypes.memset(at + 3 * size, 7, size)
    executor.copy_block(0, 3, 5)
    executor.step(*step_of([1]))
    assert all(ctypes.string_at(at + 5 * size, size) == bytes([7]) * size for at in pages)
    executor.close()


def test_steps_of_heads_are_checked_and_errors_stay_what_they_are(device: FakeDevice, tmp_path: Path) -> None:
    executor = opened(device, tmp_path)
    ids, positions, starts, lengths, rows, [(tables, slots)] = step_of([2, 2])
    with pytest.raises(InvalidRequestError, match="slots"):
        executor.draft_step(ids, positions, starts, lengths, rows, [(tables, [slots[0] + 1, *slots[1:]])])
    with pytest.raises(InvalidRequestError, match="logit rows must be at most"):
        executor.draft_step(*step_of([1] * 8)[:4], [0] * (MAX_SEQS + 1), step_of([1] * 8)[5])
    device.fail_launch(0)
    with pytest.raises(DeviceError, match=r"CUDA_ERROR_ILLEGAL_ADDRESS.*heads own"):
        executor.draft_step(*step_of([2, 2]))
    executor.close()


def test_a_plan_without_heads_has_none(device: FakeDevice, tmp_path: Path) -> None:
    path, weights = write_plan(tmp_path)
    executor = _runtime.CudaExecutor(str(path), str(weights), 0, (str(device.library),))
    executor.allocate([BLOCKS], MAX_TOKENS, MAX_SEQS, MAX_SEQS)
    executor.want_features(True)
    executor.step(*step_of([1]))
    assert FEATURE_KERNEL not in kernels(device)
    with pytest.raises(InvalidRequestError, match="the plan has no heads"):
        executor.draft_step(*step_of([1]))
    options = _runtime.EngineOptions()
    options.kv_cache_bytes, options.max_batch_size, options.max_num_tokens, options.max_chunk = 192 * 20, 4, 32, 32
    options.proposer = "heads"
    with pytest.raises(InvalidOptionError, match="no heads that propose tokens"):
        _runtime.Engine(executor, options)


HEADS = with_heads(made_plan()).heads
LAYER = made_plan().layers[0]
assert HEADS is not None
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "heads behind the end": ({"heads": replace(HEADS, first=7)}, "no instruction is of the heads"),
    "heads before features": ({"heads": replace(HEADS, first=2)}, "no instruction is of the heads"),
    "draws behind features": ({"heads": replace(HEADS, first_feature=2)}, "no instruction draws the tokens"),
    "features of another width": ({"heads": replace(HEADS, feature_width=8)}, "a row of activations for each position"),
    "features in keys": ({"heads": replace(HEADS, feature_layer=0)}, "a row of activations for each position"),
    "no such layer": ({"layers": (LAYER,)}, "there are 1 layer of the caches, and number 1 is named"),
    "no such slot": ({"heads": replace(HEADS, logits_slot=9)}, "there are 6 slots, and number 9 is named"),
    "logits of tokens": ({"heads": replace(HEADS, logits_slot=0)}, "the logits of heads must be rows of float32"),
    "draws of heads before them": ({"heads": replace(HEADS, first_draw=4)}, "no instruction draws the heads' tokens"),
    "tokens of another kind": ({"heads": replace(HEADS, tokens_slot=0)}, "the tokens must have a number for each row"),
    "states": ({"states": (64,)}, "a model with recurrent layers cannot have heads"),
    "slots behind without heads": ({"heads": None}, "an operand lies nowhere"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_plan_is_refused(device: FakeDevice, tmp_path: Path, name: str) -> None:
    changes, why = WRONG[name]
    plan, weights = write_plan(tmp_path, replace(with_heads(made_plan()), **changes))
    with pytest.raises(EngineError, match=rf"sm\.plan: .*{why}.*; rebuild the engine"):
        _runtime.CudaExecutor(str(plan), str(weights), 0, (str(device.library),))


def test_a_draft_model_comes_with_its_proposer(device: FakeDevice, tmp_path: Path) -> None:
    options = _runtime.EngineOptions()
    options.kv_cache_bytes, options.max_batch_size, options.max_num_tokens, options.max_chunk = 192 * 20, 4, 32, 32
    path, weights = write_plan(tmp_path)
    first, second = (_runtime.CudaExecutor(str(path), str(weights), 0, (str(device.library),)) for _ in range(2))
    with pytest.raises(InvalidOptionError, match="no other takes one"):
        _runtime.Engine(first, options, second)
    options.proposer = "draft"
    with pytest.raises(InvalidOptionError, match="needs the executor of a draft model"):
        _runtime.Engine(first, options)
    first.close()
    second.close()


# -- whole generations ------------------------------------------------------------------------------------------------

PROMPTS = [[5, 9, 3, 77, 21, 4, 8, 8, 30, 61, 2, 17], [44, 7, 19]]
TOKENS = 8


@pytest.fixture(scope="module")
def interpreter() -> Iterator[Interpreter]:
    with Interpreter() as found:
        yield found


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Engines by name: with a further layer that is right most of the time, the model alone, and with Medusa heads."""
    folder = tmp_path_factory.mktemp("engines")
    mtp = case_of(make_right_layer(folder / "right"), None, dtype="float32")
    medusa = make_case(folder / "medusa", "medusa", heads=2)
    return {
        "mtp": write_engine(folder / "mtp", mtp.checkpoint, mtp.joined),
        "draft": write_engine(folder / "draft", mtp.checkpoint, model_of(mtp.joined), first=1000),
        "medusa": write_engine(folder / "medusa-engine", medusa.checkpoint, medusa.joined),
    }


@pytest.mark.parametrize(
    ("name", "options", "right"),
    [
        ("mtp", {"proposer": "heads", "draft_tokens": 2}, 0.5),
        pytest.param(
            "mtp", {"proposer": "draft", "draft_tokens": 3, "draft_kv_bytes": 1 << 16}, 0.8, marks=pytest.mark.slow
        ),
        pytest.param("medusa", {"proposer": "heads", "draft_tokens": 2}, 0.0, marks=pytest.mark.slow),
    ],
    ids=["mtp", "draft", "medusa"],
)
def test_an_engine_says_with_proposals_what_it_says_without(
    device: FakeDevice, engines, interpreter, name: str, options: dict[str, Any], right: float
) -> None:
    files = [engines[name], engines["draft"]]
    device.run = Computer(
        device, {number: spec for _, _, specs in files for number, spec in specs.items()}, interpreter
    )
    alone, without = generate(executor_of(device, files[0]), PROMPTS, TOKENS)
    draft = executor_of(device, files[1]) if options["proposer"] == "draft" else None
    answers, stats = generate(executor_of(device, files[0]), PROMPTS, TOKENS, draft=draft, **options)
    assert answers == alone
    assert without["draft_tokens"] == 0
    assert stats["draft_tokens"] > 0
    assert stats["draft_failures"] == 0
    assert stats["accepted_tokens"] >= right * stats["draft_tokens"]
    if right:
        assert stats["steps"] < without["steps"]
    assert np.ptp(alone) > 0
