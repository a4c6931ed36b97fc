"""The costs of a plan without weights are those that a profile counts of the engine with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.toy_engine import write_toy_engine
from tensorwright.errors import EngineError, InvalidRequestError
from tensorwright.insight.estimate.costs import CacheGroup, PlannedCosts, StepMemory, sequence_bytes, token_bytes
from tensorwright.runtime.engine import native
from tensorwright.runtime.engine.engine_dir import open_engine
from tensorwright.runtime.tools.tune import Steps, Work

STEPS = [Work("a token", 1, 40, 1), Work("tokens", 5, 17, 1), Work("a prompt", 1, 0, 33), Work("a chunk", 2, 16, 9)]


@pytest.fixture(params=["toy", "pico_engine", "pico_engine_int8_kv"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write_toy_engine(tmp_path / "toy") if request.param == "toy" else request.getfixturevalue(request.param)


def test_costs_are_those_of_a_profile(engine: Path) -> None:
    opened = open_engine(engine)
    costs = PlannedCosts(opened.plan.read_bytes())
    steps = Steps(opened, 1, STEPS)
    for work in STEPS:
        steps._executor.profile(True)
        steps.seconds(work.name, ())
        steps._executor.profile(False)
        counted = [(r["op"], r["name"], r["arithmetic"], r["bytes"], r["ops"]) for r in steps._executor.profile_table()]
        shape = [(work.tokens, work.context + work.tokens)] * work.sequences
        planned = costs.step(shape, work.sequences)
        assert [(w.op, w.module, w.arithmetic, w.bytes, w.operations) for w in planned] == counted


def test_weights_that_a_token_reads(pico_engine: Path) -> None:
    opened = open_engine(pico_engine)
    costs = PlannedCosts(opened.plan.read_bytes())
    read = sum(work.weight_bytes for work in costs.step([(1, 1)], 1))
    row = 384 * 2  # of the embedding
    assert read + row == native.weight_reads(opened)["bytes"]


def test_experts_are_read_as_often_as_chance_has_it(engine_of) -> None:  # type: ignore[no-untyped-def]
    opened = open_engine(engine_of("qwen3_moe"))
    costs = PlannedCosts(opened.plan.read_bytes())
    (mixture, *_) = native.weight_reads(opened)["mixtures"]
    experts, taken, size = mixture["experts"], mixture["taken"], mixture["bytes_of_one"]
    rng = np.random.default_rng(0)
    for tokens in (1, 3, 20):
        drawn = [
            len({int(e) for _ in range(tokens) for e in rng.choice(experts, taken, replace=False)}) for _ in range(2000)
        ]
        found = sum(
            work.weight_bytes
            for work in costs.step([(tokens, tokens)], 1)
            if work.module == mixture["module"] and "experts" in work.op
        )
        assert found / size == pytest.approx(np.mean(drawn), rel=0.03)


def test_memory_is_what_an_executor_takes(pico_engine: Path) -> None:
    costs = PlannedCosts(open_engine(pico_engine).plan.read_bytes())
    one, many = costs.memory(64, 1, 1, 1), costs.memory(128, 1, 1, 1)
    assert 0 < one.activations < many.activations < 2 * one.activations
    assert costs.memory(64, 2, 2, 1).activations - one.activations >= 4 * 8192  # a row of logits


def test_a_step_that_cannot_be_is_refused(pico_engine: Path) -> None:
    costs = PlannedCosts(open_engine(pico_engine).plan.read_bytes())
    for sequences, rows in (([], 0), ([(0, 1)], 0), ([(2, 1)], 1), ([(1, 4096)], 1), ([(1, 5)], 2), ([(1, 5)], -1)):
        with pytest.raises(InvalidRequestError, match="step: "):
            costs.step(sequences, rows)
    with pytest.raises(EngineError):
        PlannedCosts(b"no plan")


class Made:
    """Costs of made-up caches."""

    def __init__(self, groups: tuple[CacheGroup, ...], states: int = 0):
        self.weights_bytes, self.block_size, self.groups, self.state_bytes, self.max_seq_len = (
            0,
            32,
            groups,
            states,
            999,
        )

    def step(self, sequences, rows):  # type: ignore[no-untyped-def]
        raise NotImplementedError

    def memory(self, tokens: int, rows: int, sequences: int, threads: int) -> StepMemory:
        raise NotImplementedError


def test_caches_of_sequences() -> None:
    full, window = CacheGroup(1000), CacheGroup(100, window=64)
    assert sequence_bytes(Made((full,)), 1) == sequence_bytes(Made((full,)), 32) == 1000
    assert sequence_bytes(Made((full,)), 33) == 2000
    assert sequence_bytes(Made((full, window), 7), 320) == 10 * 1000 + 3 * 100 + 7
    assert token_bytes(Made((full, window))) == 1100 / 32
