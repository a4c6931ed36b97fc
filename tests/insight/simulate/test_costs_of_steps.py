"""Costs of steps: what is fitted, measured, predicted, and kept in files."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorwright.errors import InvalidOptionError
from tensorwright.insight.devices.device import find_device
from tensorwright.insight.estimate.place import place
from tensorwright.insight.simulate.measure_costs import measure_costs, measured_options, samples_of
from tensorwright.insight.simulate.predict_costs import EngineLimits, predicted_costs, predicted_shape
from tensorwright.insight.simulate.replica_file import read_replica, write_replica
from tensorwright.insight.simulate.replica_shape import ReplicaShape
from tensorwright.insight.simulate.run_fleet import run_fleet
from tensorwright.insight.simulate.step_costs import StepCosts, StepSample, fit_costs, fixed_costs
from tensorwright.insight.simulate.traffic import Traffic
from tensorwright.new_file import NewFile
from tensorwright.options.estimate import EstimateFields
from tensorwright.runtime import _runtime
from tensorwright.runtime.engine.engine_dir import open_engine
from tensorwright.runtime.engine.trace_file import SHARE, STEP, Span

SHAPE = ReplicaShape(
    max_seq_len=4096, block_size=16, block_bytes=(100,), group_windows=(0,), kv_cache_bytes=100 * 4096,
    max_batch_size=8, max_num_tokens=64, max_chunk=64, max_queue=1000, prefix_cache=True,
)  # fmt: skip
TRUE = StepCosts((1, 16, 64, 512), (0.002, 0.004, 0.006, 0.030), 2e-8, 3e-7, 5e-5, 0.0, "by hand")


def samples(count: int = 400) -> list[StepSample]:
    """Steps of many shapes, which take what TRUE says."""
    rng = np.random.default_rng(0)
    made = []
    for _ in range(count):
        tokens = int(rng.choice([1, 2, 5, 8, 16, 24, 64, 100, 200, 512]))
        rows = int(rng.integers(0, min(tokens, 64) + 1))
        sequences = max(1, rows)
        reads = float(rng.integers(tokens, 20_000))
        sample = StepSample(tokens, sequences, rows, tokens * reads / 2, reads, 0.0)
        made.append(sample._replace(seconds=TRUE.of(sample)))
    return made


def test_a_fit_finds_costs_that_explain_all_steps() -> None:
    known = samples()
    fitted = fit_costs(known, "made")
    assert fitted.error < 0.01
    assert max(abs(fitted.of(each) / each.seconds - 1) for each in known) < 0.05
    assert fitted.steps == len(known)
    assert min(*fitted.seconds, fitted.pair_seconds, fitted.context_seconds, fitted.row_seconds) >= 0
    assert sorted(fitted.seconds) == list(fitted.seconds)


def test_the_sum_of_all_steps_is_kept_where_single_ones_are_disturbed() -> None:
    rng = np.random.default_rng(1)
    known = [each._replace(seconds=each.seconds * (8.0 if rng.random() < 0.05 else 1.0)) for each in samples()]
    fitted = fit_costs(known, "made")
    assert sum(map(fitted.of, known)) == pytest.approx(sum(each.seconds for each in known), rel=1e-6)
    # 5 % of the steps take 8 times as long, so the others take 1 / 1.35 of the mean, about.
    assert fitted.spread[10] == pytest.approx(1 / 1.35, rel=0.15)
    assert fitted.spread[-1] == pytest.approx(8 / 1.35, rel=0.2)
    assert np.mean(fitted.spread) == pytest.approx(1)


def test_the_costs_in_cpp_are_those_in_python() -> None:
    """A step of one sequence, and one of several, as the simulation's clock counts them."""
    zeros = np.zeros(1, np.int32)
    one = Traffic(np.zeros(1, np.int64), zeros + 40, zeros + 2, zeros, zeros, zeros, zeros)
    run = run_fleet(SHAPE, TRUE, one)
    pairs, reads = SHAPE.attention([(40, 40)])
    assert (pairs, reads) == (820.0, 40.0)
    prompt = TRUE.of(StepSample(40, 1, 1, pairs, reads, 0))
    assert run.first[0] == pytest.approx(prompt * 1e9, abs=1)
    decode = TRUE.of(StepSample(1, 1, 1, *SHAPE.attention([(1, 41)]), 0))
    assert run.ended[0] - run.first[0] == pytest.approx(decode * 1e9, abs=1)


def test_nothing_is_fitted_to_nothing() -> None:
    with pytest.raises(InvalidOptionError, match="no step was measured"):
        fit_costs([], "made")
    with pytest.raises(InvalidOptionError, match="one took none"):
        fit_costs([StepSample(1, 1, 1, 1.0, 1.0, 0.0)], "made")


def span(kind: int, begin: int, number: int, a: int = 0, b: int = 0, c: int = 0, d: int = 0) -> Span:
    return Span(kind, begin, begin + 5, number, 0, a, b, c, d)


def test_a_step_lasts_until_the_next_one_unless_the_engine_may_be_idle() -> None:
    spans = [
        span(SHARE, 100, 7, a=20, b=0), span(STEP, 100, 1, a=20, b=1, c=1),  # request 7 goes on
        span(SHARE, 130, 7, a=1, b=20), span(STEP, 130, 2, a=1, b=1, c=1),  # it ends; nobody waits
        span(SHARE, 900, 8, a=4, b=8), span(STEP, 900, 3, a=4, b=1, c=1, d=1),  # it ends; somebody waits
        span(SHARE, 950, 9, a=4, b=0), span(STEP, 950, 4, a=4, b=1, c=1),  # the last
    ]  # fmt: skip
    assert samples_of(spans, SHAPE) == [
        StepSample(20, 1, 1, 210.0, 20.0, pytest.approx(30e-9)),
        StepSample(4, 1, 1, 9.0 + 10 + 11 + 12, 12.0, pytest.approx(50e-9)),
    ]
    assert [sample.tokens for sample in samples_of(spans, SHAPE, first_request=8)] == [4]


def options(**changes: Any) -> Any:
    values = {"max_batch_size": 4, "max_num_tokens": 64, "max_prefill_chunk": None, "enable_prefix_caching": None}
    return measured_options(values | {"max_queue_size": 100, "threads": 1} | changes, 8 << 20)


def test_steps_of_an_engine_are_measured(pico_engine: Path) -> None:
    """How long they take is the machine's affair; that they were measured, and of which engine, is not."""
    shape, costs = measure_costs(open_engine(pico_engine), options(), 0.1)
    assert (shape.max_batch_size, shape.max_num_tokens, shape.kv_cache_bytes) == (4, 64, 8 << 20)
    assert shape.block_bytes == (open_engine(pico_engine).kv_block_bytes,)
    assert costs.steps > 20
    assert costs.seconds[0] > 1e-6
    assert "measured on this machine with 1 thread" in costs.source
    assert np.mean(costs.spread) == pytest.approx(1)


def test_the_roofline_is_fitted_closely(pico_engine: Path) -> None:
    device = replace(find_device("h100"), memory=4 << 30)
    placed = replace(place(pico_engine, EstimateFields(device="h100"), {}), device=device)
    shape = predicted_shape(placed.costs, device, EngineLimits(max_batch_size=16), 1)
    costs = predicted_costs(placed.clock(), shape)
    assert shape.max_batch_size == 16
    assert costs.error < 0.02
    for sequences, rows in (([(1, 700)] * 10, 10), ([(300, 500)], 1), ([(1, 100)] * 7 + [(200, 200)], 8)):
        pairs, reads = shape.attention(sequences)
        tokens = sum(count for count, _ in sequences)
        truth = placed.clock().step(sequences, rows).seconds
        assert costs.of(StepSample(tokens, len(sequences), rows, pairs, reads, 0.0)) == pytest.approx(truth, rel=0.05)


def test_a_model_that_leaves_no_memory_is_refused(pico_engine: Path) -> None:
    placed = place(pico_engine, EstimateFields(device="h100"), {})
    with pytest.raises(InvalidOptionError, match="are left for the KV cache"):
        predicted_shape(placed.costs, replace(placed.device, memory=1 << 20), EngineLimits(), 1)
    with pytest.raises(InvalidOptionError, match=r"and 1\.0 TiB are needed"):
        predicted_shape(placed.costs, placed.device, EngineLimits(kv_cache_bytes=1 << 40), 1)
    with pytest.raises(InvalidOptionError, match="--max-num-tokens must be at least --max-batch-size 8"):
        predicted_shape(placed.costs, placed.device, EngineLimits(max_batch_size=8, max_num_tokens=4), 1)


def test_a_file_holds_a_replica_and_its_costs(tmp_path: Path) -> None:
    costs = replace(TRUE, spread=(0.5, 1.5))
    write_replica(NewFile(tmp_path / "costs.json", "--save-costs"), SHAPE, costs)
    assert read_replica(tmp_path / "costs.json") == (SHAPE, costs)


CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"format": 2}, "of this version"),
    ({"more": 1}, "of this version"),
    ({"replica": {}}, "replica must have max_seq_len"),
    ({"replica": asdict(SHAPE) | {"block_size": "16"}}, "block_size must be int"),
    ({"replica": asdict(SHAPE) | {"prefix_cache": 1}}, "prefix_cache must be bool"),
    ({"costs": asdict(TRUE) | {"pair_seconds": -1.0}}, "pair_seconds must be float of 0 or more"),
    ({"costs": asdict(TRUE) | {"sizes": [1.5]}}, r"sizes must be tuple\[int"),
    ({"costs": asdict(TRUE) | {"seconds": 3}}, r"seconds must be tuple\[float"),
    ({"costs": asdict(TRUE) | {"source": None}}, "source must be str"),
]


@pytest.mark.parametrize(("change", "fault"), CHANGES)
def test_a_file_that_is_none_is_refused(tmp_path: Path, change: dict[str, Any], fault: str) -> None:
    path = tmp_path / "costs.json"
    path.write_text(json.dumps({"format": 1, "replica": asdict(SHAPE), "costs": asdict(TRUE)} | change))
    with pytest.raises(InvalidOptionError, match=fault):
        read_replica(path)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidOptionError, match="cannot be read"):
        read_replica(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(InvalidOptionError, match="cannot be read"):
        read_replica(tmp_path / "bad.json")


def test_sizes_that_do_not_ascend_are_refused_when_they_are_used() -> None:
    options = SHAPE.native_options()
    replace(fixed_costs(1.0), sizes=(1, 1), seconds=(1.0, 1.0)).set_on(options)
    with pytest.raises(InvalidOptionError, match="ascend"):
        _runtime.SimulatedFleet(options)


def test_windows_count_with_their_share() -> None:
    windows = replace(SHAPE, block_bytes=(100, 300), group_windows=(0, 4))
    assert windows.attention([(1, 10)]) == (pytest.approx((10 + 3 * 4) / 4), pytest.approx((10 + 3 * 4) / 4))
    with pytest.raises(InvalidOptionError, match="a context that holds them"):
        windows.attention([(5, 4)])
