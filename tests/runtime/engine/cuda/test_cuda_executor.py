"""The runtime of target cuda over a stand-in of the driver: launches, metadata, graphs, and what goes wrong.

It has more than 500 lines so that all of its tests share one stand-in and one plan.
"""

from __future__ import annotations

import ctypes
import random
import struct
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.fake_libcuda import FakeDevice, Started
from support.gpu_draws import COMBINATIONS, draws_of
from support.made_cuda_plan import (
    BLOCK,
    DECODE,
    DRAW_KERNEL,
    MAX_SEQS,
    MAX_TOKENS,
    PARAMETERS,
    PREFILL,
    VOCAB,
    WIDTH,
    ints,
    kernel,
    made_plan,
    step_of,
    write_plan,
)
from support.waiting import PATIENCE, wait_until
from tensorwright.builder.emit.cuda.plan_file import Instruction, KvLayerPages
from tensorwright.builder.emit.cuda.trace_launches import Branch, Leaf
from tensorwright.errors import (
    DeviceError,
    EngineError,
    EngineStoppedError,
    InvalidOptionError,
    InvalidRequestError,
    OutOfMemoryError,
)
from tensorwright.plugins.draw_tokens.op import FIELDS, NOT_DRAWN, Draw, reference
from tensorwright.runtime import _runtime

BLOCKS = 160
MOST_GRAPHS = 64
"""As runtime/core/cuda/cuda_executor.cc has it."""


@pytest.fixture
def device(library: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDevice]:
    monkeypatch.setenv("TENSORWRIGHT_LIBCUDA", str(library))
    device = FakeDevice(library)
    device.run = Logits().write
    yield device
    assert device.faults == []
    assert device.live == 0, "memory is not freed"


class Logits:
    """Does the work of the product: row r of the logits becomes r, r, r + 1, r, ..., so that greedy says token 2."""

    def __init__(self) -> None:
        self.metadata: list[tuple[np.ndarray, np.ndarray]] = []
        self.row: np.ndarray | None = None
        """What all rows are instead, float32 [VOCAB]."""
        self.draws = np.zeros(0, np.int32)
        """How the tokens of the last step were drawn."""

    def write(self, one: Started) -> None:
        if one.kernel == DRAW_KERNEL:
            self.draw(one)
            return
        if one.kernel >= 0:
            tokens = one.grid[0]
            self.metadata.append((ints(one.values[1], tokens), ints(one.values[2], 4)))
            return
        m, n = one.values[:2]
        rows = np.tile(np.arange(m, dtype=np.float32)[:, None], (1, n))
        rows[:, 2] += 1
        rows = rows if self.row is None else np.tile(self.row, (m, 1))
        ctypes.memmove(one.values[9], rows.ctypes.data, rows.nbytes)

    def draw(self, one: Started) -> None:
        """Does the work of the kernels that draw tokens, by their definition."""
        rows = one.grid[0]
        logits = np.frombuffer(ctypes.string_at(one.values[0], 4 * rows * VOCAB), np.float32).reshape(rows, VOCAB)
        self.draws = ints(one.values[1], rows * len(FIELDS)).reshape(rows, -1)
        (tokens,) = reference([logits, self.draws], {}, "float32")
        ctypes.memmove(one.values[2], tokens.ctypes.data, tokens.nbytes)


def opened(device: FakeDevice, folder: Path, graphs: bool = True, **changes: Any) -> Any:
    plan, weights = write_plan(folder, made_plan(**changes))
    return _runtime.CudaExecutor(str(plan), str(weights), 0, (str(device.library),), graphs)


def allocated(device: FakeDevice, folder: Path, graphs: bool = True) -> Any:
    executor = opened(device, folder, graphs)
    executor.allocate([BLOCKS], MAX_TOKENS, MAX_SEQS, MAX_SEQS)
    return executor


def test_a_step_starts_what_its_sizes_decide(device: FakeDevice, tmp_path: Path) -> None:
    executor = allocated(device, tmp_path)
    weights = next(at for at, size in device.pieces().items() if size == 512)
    logits = executor.step(*step_of([5, 1, 2]))
    assert logits.tolist() == [[r, r, r + 1, *[r] * (VOCAB - 3)] for r in range(3)]
    launch, product = device.started
    assert (launch.grid, launch.block, launch.shared) == ((3, 2, 1), 128, 65536)
    slot, _, _, _, _, number, blocks, half, *scratch = launch.values[:10]
    assert (number, blocks, scratch) == (PREFILL, BLOCKS + 1, [0, 0])
    assert struct.unpack("<f", struct.pack("<I", half))[0] == 0.5
    assert (slot - 64) % 256 == 0
    m, n, k, x_type, out_type, _, w, bias, c, _ = product.values[:10]
    assert (m, n, k, x_type, out_type, c) == (3, VOCAB, WIDTH, 14, 0, 0)
    assert (w, bias) == (weights, weights + 256)
    assert ctypes.string_at(weights, 512) == (tmp_path / "weights.bin").read_bytes()
    executor.close()


def test_a_leaf_starts_kernels_and_products_in_order(device: FakeDevice, tmp_path: Path) -> None:
    """A product of half of the columns of the logits, which adds what is there, before a launch."""
    plan = made_plan()
    (head,) = plan.instructions[1].nodes[0].launches
    half = replace(head, n=VOCAB // 2, args=(*head.args[:3], head.args[4], head.args[4]))
    launch = plan.instructions[0].nodes[3].launches[0]
    mixed = Instruction("mixed", (Branch(6, 1, 2), Leaf((half, launch)), Leaf(())))
    changed = replace(plan, instructions=(mixed, plan.instructions[1]), draws=None)
    plan_file, weights = write_plan(tmp_path, changed)
    executor = _runtime.CudaExecutor(str(plan_file), str(weights), 0, (str(device.library),))
    executor.allocate([BLOCKS], MAX_TOKENS, MAX_SEQS, MAX_SEQS)
    executor.step(*step_of([1, 1]))
    assert [one.kernel for one in device.started] == [-1, 0, -1]
    m, n, k, _, _, _, _, _, c, d, stride = device.started[0].values[:11]
    assert (m, n, k, stride) == (2, VOCAB // 2, WIDTH, VOCAB)
    assert c == d == device.started[2].values[9]
    executor.step(*step_of([2, 1]))
    assert [one.kernel for one in device.started[3:]] == [-1]
    executor.close()


def test_the_graph_that_was_used_least_recently_makes_room(device: FakeDevice, tmp_path: Path) -> None:
    executor = allocated(device, tmp_path)
    shapes = [(seqs, blocks) for seqs in (*range(1, 17), *range(18, 33, 2)) for blocks in (1, 2, 4)]

    def step(shape: tuple[int, int]) -> str:
        before = executor.counters()
        executor.step(*step_of([1] * shape[0], context=shape[1] * BLOCK - 1))
        return next(what for what in ("captured", "replayed", "eager") if executor.counters()[what] > before[what])

    first, second, *others = shapes[: MOST_GRAPHS + 1]
    assert [step(first), step(first), step(second), step(second)] == ["eager", "captured"] * 2
    for shape in others[:-1]:
        assert step(shape) == "eager"
    assert step(first) == "replayed"
    assert step(others[-1]) == "eager", "it takes the place of the second"
    assert [step(first), step(others[0]), step(second)] == ["replayed", "captured", "eager"]
    executor.close()


@pytest.mark.parametrize("graphs", [True, False])
def test_decode_steps_are_replayed(device: FakeDevice, tmp_path: Path, graphs: bool) -> None:
    executor = allocated(device, tmp_path, graphs)
    arguments = step_of([1] * 3, context=6)
    outs = [executor.step(*arguments).tolist() for _ in range(4)]
    assert outs == [outs[0]] * 4
    own = [(one.kernel, one.grid, one.values) for one in device.started]
    assert own == own[:2] * 4
    assert own[0][1] == (3, 1, 1)
    assert own[0][2][5] == DECODE
    counts = {"eager": 1, "captured": 1, "replayed": 3} if graphs else {"eager": 4, "captured": 0, "replayed": 0}
    assert executor.counters() == {**counts, "drawn": 0, "undecided": 0, "ahead": 0, "head_steps": 0}
    executor.close()


def test_a_replayed_step_is_padded_with_sequences_of_a_block_of_their_own(device: FakeDevice, tmp_path: Path) -> None:
    kept = Logits()
    device.run = kept.write
    executor = allocated(device, tmp_path)
    lengths = [1] * 17
    ids, _, _, _, _, [(tables, _)] = step_of(lengths)
    assert executor.step(*step_of(lengths)).shape == (17, VOCAB)
    (tokens, first_row) = kept.metadata[0]
    assert tokens.tolist() == [*ids, 0]
    assert first_row[0] == tables[0, 0]
    launch = device.started[0]
    whole = ints(launch.values[2], 18)
    assert whole.tolist() == [*tables[:, 0].tolist(), BLOCKS], "the one more sequence writes behind the pool"
    executor.close()


def test_blocks_are_copied_in_every_tensor(device: FakeDevice, tmp_path: Path) -> None:
    executor = allocated(device, tmp_path)
    pages = {
        size // (BLOCKS + 1): at
        for at, size in device.pieces().items()
        if size in (64 * (BLOCKS + 1), 128 * (BLOCKS + 1))
    }
    for size, at in pages.items():
        ctypes.memset(at + 3 * size, size % 200, size)
    executor.copy_block(0, 3, 7)
    executor.step(*step_of([1]))
    for size, at in pages.items():
        assert ctypes.string_at(at + 7 * size, size) == bytes([size % 200]) * size
        assert ctypes.string_at(at + 8 * size, size) == bytes(size)
    with pytest.raises(InvalidRequestError, match=f"no block {BLOCKS}"):
        executor.copy_block(0, 3, BLOCKS)
    executor.close()


STATES = (64, 128)
"""The bytes of the states of two recurrent layers."""


def test_states_lie_in_slots(device: FakeDevice, tmp_path: Path) -> None:
    """A launch gets the state of its layer in the first slot, and the slots of the sequences; the one of padding is
    behind those of the engine."""
    kept = Logits()
    device.run = kept.write
    executor = opened(device, tmp_path, states=STATES)
    assert executor.facts()["state_bytes"] == 192
    with pytest.raises(InvalidRequestError, match="state_slots must be positive for a model with 192 bytes of states"):
        executor.allocate([BLOCKS], MAX_TOKENS, MAX_SEQS, MAX_SEQS)
    executor.allocate([BLOCKS], MAX_TOKENS, MAX_SEQS, MAX_SEQS, 20)
    states = next(at for at, size in device.pieces().items() if size == 192 * 21)
    slots = [(3 * i + 1) % 20 for i in range(17)]
    executor.step(*step_of([1] * 17), slots)
    launch = device.started[0]
    assert launch.values[0] == states + 64
    assert ints(launch.values[2], 18).tolist() == [*slots, 20]
    executor.draw_step(*step_of([1] * 17), [GREEDY] * 17, slots)
    launch = device.started[2]
    assert ints(launch.values[2], 18).tolist() == [*slots, 20], "how tokens are drawn lies before them"
    assert kept.draws[:, 0].tolist() == [Draw(0.0).fields()[0]] * 17 + [NOT_DRAWN[0]]
    with pytest.raises(InvalidRequestError, match="state_slots must have 1 entries, has 0"):
        executor.step(*step_of([5]))
    executor.close()


def test_states_are_copied_from_slot_to_slot(device: FakeDevice, tmp_path: Path) -> None:
    executor = opened(device, tmp_path, states=STATES)
    executor.allocate([BLOCKS], MAX_TOKENS, MAX_SEQS, MAX_SEQS, 5)
    states = next(at for at, size in device.pieces().items() if size == 192 * 6)
    ctypes.memset(states, 1, 192 * 6)
    ctypes.memset(states + 192 * 3, 7, 192)
    executor.copy_state(3, 1)
    executor.step(*step_of([1]), [0])
    assert ctypes.string_at(states, 192 * 6) == b"".join(bytes([n]) * 192 for n in (1, 7, 1, 7, 1, 1))
    for slots in ((0, 5), (-1, 0)):
        with pytest.raises(InvalidRequestError, match="copy_state: slot must be 0 to 4"):
            executor.copy_state(*slots)
    executor.close()


def test_a_model_without_states_has_no_slots(device: FakeDevice, tmp_path: Path) -> None:
    executor = opened(device, tmp_path)
    with pytest.raises(InvalidRequestError, match="state_slots must be 0 for a model with 0 bytes of states"):
        executor.allocate([BLOCKS], MAX_TOKENS, MAX_SEQS, MAX_SEQS, 1)
    executor.close()


def test_sizes_that_kernels_refuse(device: FakeDevice, tmp_path: Path) -> None:
    executor = allocated(device, tmp_path)
    with pytest.raises(InvalidRequestError, match=r"more than 60 tokens, in layer\.0 made"):
        executor.step(*step_of([61]))
    executor.step(*step_of([5]))
    executor.close()


def test_limits(device: FakeDevice, tmp_path: Path) -> None:
    executor = opened(device, tmp_path)
    for sizes, option in (((MAX_TOKENS + 1, 1, 1), "max-num-tokens"), ((8, 8, MAX_SEQS + 1), "max-batch-size")):
        with pytest.raises(InvalidOptionError, match=option):
            executor.allocate([BLOCKS], *sizes)
    with pytest.raises(
        InvalidOptionError, match=r"logits of at most 32 tokens of a step, got 33; .*rows of speculative"
    ):
        executor.allocate([BLOCKS], MAX_TOKENS, MAX_SEQS + 1, MAX_SEQS)
    executor.close()
    with pytest.raises(EngineStoppedError):
        executor.facts()


def test_an_error_of_the_device_stays_one(device: FakeDevice, tmp_path: Path) -> None:
    executor = allocated(device, tmp_path)
    device.fail_launch(0)
    with pytest.raises(DeviceError, match=r"CUDA_ERROR_ILLEGAL_ADDRESS.*layer\.0 made"):
        executor.step(*step_of([5]))
    executor.close()


def test_memory_that_does_not_suffice(device: FakeDevice, tmp_path: Path) -> None:
    executor = opened(device, tmp_path)
    with pytest.raises(OutOfMemoryError, match="KV cache"):
        executor.allocate([1 << 25], MAX_TOKENS, MAX_SEQS, MAX_SEQS)
    executor.close()


def test_code_for_another_gpu(device: FakeDevice, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="has code for SM 80, and a stand-in has SM 90; build the model with --sm 90"):
        opened(device, tmp_path, sm=80)


def test_wrong_weights(device: FakeDevice, tmp_path: Path) -> None:
    plan, weights = write_plan(tmp_path)
    weights.write_bytes(b"x" * 511)
    with pytest.raises(EngineError, match=r"weights\.bin: cannot be read: it has 511 bytes, the plan names 512"):
        _runtime.CudaExecutor(str(plan), str(weights), 0, (str(device.library),))


def test_a_damaged_plan_is_refused(device: FakeDevice, tmp_path: Path) -> None:
    path, weights = write_plan(tmp_path)
    good, rng = path.read_bytes(), random.Random(3)
    bad = tmp_path / "bad.plan"
    flips = [bytearray(good) for _ in range(200)]
    for data in flips:
        data[rng.randrange(len(good))] ^= 1 << rng.randrange(8)
    for content in [*(good[:size] for size in range(len(good))), *flips, good + b"x"]:
        bad.write_bytes(content)
        with pytest.raises(EngineError, match=r"bad\.plan: "):
            _runtime.CudaExecutor(str(bad), str(weights), 0, (str(device.library),))


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a weight outside": ({"weights": ((0, 256), (256, 512))}, "a weight lies outside"),
    "a weight not aligned": ({"weights": ((16, 64), (256, 64))}, "a weight lies outside"),
    "no such group": ({"layers": (KvLayerPages(1, (64, 128)),)}, "there are 1 cache groups, and number 1 is named"),
    "fewer page tensors": ({"layers": (KvLayerPages(0, (64,)),)}, "an operand lies nowhere"),
    "no such slot": ({"slots": ((1, 4 * VOCAB),), "logits_slot": 0}, "an operand lies nowhere"),
    "logits of another width": ({"vocab_size": VOCAB + 1}, "the logits must be rows of float32"),
    "no such kernel": ({"kernels": ()}, "there are 0 kernels, and number 0 is named"),
    "another parameter": ({"kernels": (kernel(0, ("i32", *PARAMETERS[1:])),)}, "has another type than the kernel's"),
    "too few arguments": ({"kernels": (kernel(0, (*PARAMETERS, "i32")),)}, "too few arguments"),
    "a state without a size": ({"states": (96,)}, "a state has no size"),
    "draws behind the end": ({"draws": (3, 3)}, "no instruction draws the tokens"),
    "tokens of another kind": ({"draws": (2, 0)}, "the tokens must have a number for each row"),
    "no steps": ({"max_step": (0, 1, 1)}, "is out of range"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_plan_is_refused(device: FakeDevice, tmp_path: Path, name: str) -> None:
    changes, why = WRONG[name]
    plan, weights = write_plan(tmp_path, replace(made_plan(), **changes))
    with pytest.raises(EngineError, match=rf"sm\.plan: .*{why}.*; rebuild the engine"):
        _runtime.CudaExecutor(str(plan), str(weights), 0, (str(device.library),))


GREEDY = (0.0, 0, 1.0, 0.0, 0.0)
ROW = np.array([0.3, 2.0, -1.0, 1.5, 2.0, 0.0, -np.inf, 1.0], np.float32)


@pytest.mark.parametrize("graphs", [True, False])
def test_tokens_are_drawn_on_the_device(device: FakeDevice, tmp_path: Path, graphs: bool) -> None:
    """Of rows with a token, the token travels alone; what the host has of their logits is what it had before."""
    kept = Logits()
    kept.row, device.run = ROW, kept.write
    executor = allocated(device, tmp_path, graphs)
    wanted = [GREEDY, None, (0.8, 3, 0.9, 0.05, 0.7), *[(1.5, 0, 1.0, 0.0, u / 16) for u in range(14)]]
    fields = [NOT_DRAWN if one is None else Draw(one[0], *one[1:4], uniform=one[4]).fields() for one in wanted]
    (expected,) = reference([np.tile(ROW, (17, 1)), fields], {}, "float32")
    for _ in range(3):
        tokens, logits = executor.draw_step(*step_of([1] * 17, context=2), wanted)
        assert tokens == expected.tolist()
        assert tokens[0] == 1
        assert np.isnan(logits[[0, *range(2, 17)]]).all()
        assert (logits[1] == ROW).all()
    padding = [NOT_DRAWN] if graphs else []
    assert kept.draws.tolist() == [*fields, *padding]
    assert executor.counters()["drawn"] == 3 * 16
    assert executor.counters()["replayed"] == (2 if graphs else 0)
    assert executor.step(*step_of([1] * 17, context=2)).tolist() == [ROW.tolist()] * 17
    started = [one.kernel for one in device.started]
    assert started.count(DRAW_KERNEL) == 3, "a step that draws nothing has a graph of its own"
    executor.close()


def test_how_tokens_are_drawn_is_written_as_the_kernels_read_it(device: FakeDevice, tmp_path: Path) -> None:
    kept = Logits()
    kept.row, device.run = ROW, kept.write
    executor = allocated(device, tmp_path)
    every = draws_of(len(COMBINATIONS), seed=3)
    for first in range(0, len(every), MAX_SEQS):
        some = every[first : first + MAX_SEQS]
        given = [(draw.temperature, draw.top_k, draw.top_p, draw.min_p, draw.uniform) for draw in some]
        executor.draw_step(*step_of([1] * len(some)), given)
        assert kept.draws[: len(some)].tolist() == [draw.fields() for draw in some]
    executor.close()


def test_a_row_that_the_device_is_not_sure_of_travels_after_all(device: FakeDevice, tmp_path: Path) -> None:
    kept = Logits()
    kept.row, device.run = np.zeros(VOCAB, np.float32), kept.write
    executor = allocated(device, tmp_path)
    border = (1.0, 0, 1.0, 0.0, 0.5)
    tokens, logits = executor.draw_step(*step_of([2, 1, 1]), [border, GREEDY, border])
    assert tokens == [-1, 0, -1]
    assert (logits[[0, 2]] == 0).all()
    assert np.isnan(logits[1]).all()
    assert (executor.counters()["drawn"], executor.counters()["undecided"]) == (1, 2)
    executor.close()


def test_tokens_that_do_not_exist_are_an_error_of_the_device(device: FakeDevice, tmp_path: Path) -> None:
    def write(one: Started) -> None:
        if one.kernel == DRAW_KERNEL:
            ctypes.memset(one.values[2], 1, 4)

    device.run = write
    executor = allocated(device, tmp_path)
    with pytest.raises(DeviceError, match="gave 16843009, and the model has 8 tokens"):
        executor.draw_step(*step_of([1]), [GREEDY])
    executor.close()


@pytest.mark.parametrize("without", [True, False], ids=["without the kernels", "asked not to"])
def test_an_engine_that_draws_no_tokens(device: FakeDevice, tmp_path: Path, without: bool) -> None:
    made = made_plan()
    plan = replace(made, instructions=made.instructions[:2], draws=None) if without else made
    files = map(str, write_plan(tmp_path, plan))
    executor = _runtime.CudaExecutor(*files, 0, (str(device.library),), draws=without)
    executor.allocate([BLOCKS], MAX_TOKENS, MAX_SEQS, MAX_SEQS)
    assert executor.step(*step_of([1])).shape == (1, VOCAB)
    with pytest.raises(InvalidRequestError, match="an engine that draws tokens"):
        executor.draw_step(*step_of([1]), [GREEDY])
    executor.close()


class Chain(Logits):
    """A model whose rows of logits depend on the token ids that the device has for them: those of the decodes, which
    come first in a step. Every fourth time, the kernel that draws tokens is sure of none."""

    def __init__(self) -> None:
        super().__init__()
        self.ids = 0
        """The address of the token ids."""
        self.drew = 0

    def write(self, one: Started) -> None:
        if one.kernel >= 0:
            if one.kernel != DRAW_KERNEL:
                self.ids = one.values[1]
            super().write(one)
            return
        rows = np.tile(ROW, (one.values[0], 1))
        for row, token in zip(rows, ints(self.ids, len(rows)), strict=True):
            row[(3 * token + 1) % VOCAB] += 1.5
        ctypes.memmove(one.values[9], rows.ctypes.data, rows.nbytes)

    def draw(self, one: Started) -> None:
        super().draw(one)
        self.drew += 1
        if self.drew % 4 == 0:
            ctypes.memset(one.values[2], 255, 4 * one.grid[0])


def test_an_engine_draws_the_same_tokens_wherever_it_draws_them(device: FakeDevice, tmp_path: Path) -> None:
    """And whether it waits for them before it starts the next step."""
    options = _runtime.EngineOptions()
    options.kv_cache_bytes, options.max_batch_size, options.max_num_tokens = 192 * BLOCKS, 4, 32
    options.max_chunk, options.max_queue = 32, 8
    answers: dict[tuple[bool, bool], dict[int, list[int]]] = {}
    for draws, ahead in [(True, True), (True, False), (False, True)]:
        device.run = Chain().write
        device.started.clear()
        files = map(str, write_plan(tmp_path))
        executor = _runtime.CudaExecutor(*files, 0, (str(device.library),), draws=draws, ahead=ahead)
        engine = _runtime.Engine(executor, options)
        told = answers.setdefault((draws, ahead), {})
        for number, changes in enumerate(ASKED):
            sampling = _runtime.Sampling()
            sampling.max_tokens, sampling.temperature, sampling.seed = 12, 0.9, number
            for name, value in changes.items():
                setattr(sampling, name, value)
            engine.submit(number, [1] * (3 + number % 4), sampling)
            told[number] = []
        done = 0
        while done < len(ASKED):
            for event in engine.wait_events(PATIENCE):
                told[event.request_id] += event.tokens
                done += event.finish != ""
        assert (engine.stats()["steps_ahead"] > 10) == (draws and ahead)
        engine.shutdown(False)
        del engine
        assert (DRAW_KERNEL in {one.kernel for one in device.started}) == draws
    first, *others = answers.values()
    assert all(one == first for one in others)
    assert all(len(tokens) == 12 for tokens in first.values())
    assert len(set(map(tuple, first.values()))) > 3


ASKED: list[dict[str, Any]] = [
    {}, {"temperature": 0.0}, {"top_p": 0.7}, {"top_k": 3, "min_p": 0.1}, {"logprobs": 1}, {"presence_penalty": 0.5},
    {"typical_p": 0.8}, {"top_k": 2, "top_p": 0.6},
]  # fmt: skip
"""Requests that are drawn on the device, and others that the host draws beside them."""


def test_an_engine_runs_and_ends_with_its_device(device: FakeDevice, tmp_path: Path) -> None:
    options = _runtime.EngineOptions()
    options.kv_cache_bytes, options.max_batch_size, options.max_num_tokens = 192 * BLOCKS, 4, 32
    options.max_chunk, options.max_queue = 32, 8
    engine = _runtime.Engine(opened(device, tmp_path), options)
    sampling = _runtime.Sampling()
    sampling.max_tokens, sampling.temperature, sampling.ignore_eos = 6, 0.0, True
    engine.submit(1, [1, 2, 3], sampling)
    engine.submit(2, [4, 5, 6, 7, 1, 2], sampling)
    answers: dict[int, list[int]] = {1: [], 2: []}
    done = 0
    while done < 2:
        for event in engine.wait_events(PATIENCE):
            answers[event.request_id] += event.tokens
            done += event.finish != ""
    assert answers == {1: [2] * 6, 2: [2] * 6}
    device.fail_launch(0)
    engine.submit(3, [1, 2, 3], sampling)
    (event,) = [e for e in engine.wait_events(PATIENCE) if e.finish]
    assert event.finish == "error"
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in event.error
    wait_until(partial(getattr, engine, "stopped"))
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in engine.cause
    with pytest.raises(EngineStoppedError):
        engine.submit(4, [1], sampling)
    engine.shutdown(False)
    del engine


def test_a_prefix_begins_with_a_snapshot_of_states(device: FakeDevice, tmp_path: Path) -> None:
    """The second request computes only what is behind the last snapshot of the same prompt."""
    options = _runtime.EngineOptions()
    options.kv_cache_bytes, options.max_batch_size, options.max_num_tokens = 192 * BLOCKS, 4, 32
    options.max_chunk, options.max_queue, options.state_snapshots = 32, 8, 4
    engine = _runtime.Engine(opened(device, tmp_path, states=STATES), options)
    sampling = _runtime.Sampling()
    sampling.max_tokens, sampling.temperature, sampling.ignore_eos = 2, 0.0, True
    cached, finished = {1: 0, 2: 0}, set[int]()
    for number in cached:
        engine.submit(number, [1, 2, 3, 4, 5, 6, 7, 1, 2], sampling)
        while number not in finished:
            for event in engine.wait_events(PATIENCE):
                cached[event.request_id] = max(cached[event.request_id], event.cached_tokens)
                finished |= {event.request_id} if event.finish else set()
    assert cached == {1: 0, 2: 2 * BLOCK}
    engine.shutdown(False)
    del engine
