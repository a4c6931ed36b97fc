"""shared_norm: that parts of a row add up to its norm, that the instructions give what the definitions say, and what is
refused."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from support import plan_writer
from support.plan_writer import F32, ROWS, TOKENS, PlanWriter
from support.sweep import sweep
from tensorwright.errors import EngineError, GraphError
from tensorwright.ir.graph import Value
from tensorwright.plugins.rms_norm.op import normalise
from tensorwright.plugins.shared_norm import rms_norm_by_sums, square_sums
from tensorwright.runtime import _runtime

pytestmark = pytest.mark.computes
UNIT = 2.0**-24
STEP, WIDTH = 150, 333


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def places(start: int, columns: int, offset: int, size: int, runs: int) -> dict[str, int]:
    return {"start": start, "columns": columns, "offset": offset, "size": size, "runs": runs}


@pytest.mark.parametrize("cuts", [[0, 48], [0, 16, 48], [0, 5, 6, 31, 48]])
def test_the_parts_of_ranks_make_the_norm_of_the_row(cuts: list[int]) -> None:
    """Two runs of 24 columns, which ranks cut anywhere, from the second column of x on."""
    x, w = normal(3, 50), normal(24, seed=1)
    total = np.zeros((3, 2), np.float32)
    parts = list(pairwise(cuts))
    for begin, end in parts:
        own = np.concatenate([x[:, :1], x[:, 1 + begin : 1 + end]], axis=1)
        total += square_sums.reference([own], places(1, end - begin, begin, 24, 2), "float32")[0]
    got = [x[:, :1]]
    for begin, end in parts:
        own = np.concatenate([x[:, :1], x[:, 1 + begin : 1 + end]], axis=1)
        attrs = {"start": 1, "offset": begin, "size": 24, "first": 0, "eps": 1e-5, "weight_offset": 1.0}
        factors = np.concatenate([w, w])[begin:end]
        got.append(rms_norm_by_sums.reference([own, total, factors], attrs, "float32")[0][:, 1:])
    wanted = normalise(x[:, 1:49].reshape(3, 2, 24), w, 1e-5, 1.0).reshape(3, 48)
    np.testing.assert_allclose(np.concatenate(got, axis=1)[:, 1:], wanted, rtol=30 * UNIT, atol=30 * UNIT)


def test_a_rank_that_counts_nothing_adds_zeros() -> None:
    assert square_sums.reference([normal(2, 8)], places(3, 0, 5, 4, 3), "float32")[0].tolist() == [[0, 0, 0]] * 2


def executor_of(folder: Path, x: np.ndarray, w: np.ndarray, sums: dict, norm: dict, threads: int, observed: str):
    """Looks up rows of x, sums their squares and normalises them by the sums. observed: y, or the sums."""
    plan = PlanWriter(len(x), STEP, 16, F32)
    rows = plan.buffer(TOKENS, F32, x.shape[1])
    plan.op(plan_writer.EMBEDDING, "rows", outs=[rows], weights=[plan.panels("table", x)], floats=[1.0])
    total, y = plan.buffer(TOKENS, F32, sums["runs"]), plan.buffer(TOKENS, F32, x.shape[1])
    plan.op(square_sums.INSTRUCTION.number, "sums", [rows], [total], ints=[*sums.values()])
    ints = [norm[name] for name in ("start", "offset", "size", "first")]
    floats = [norm["eps"], norm["weight_offset"]]
    plan.op(rms_norm_by_sums.INSTRUCTION.number, "norm", [rows, total], [y], [plan.vector("w", w)], ints, floats)
    plan.logits = plan.buffer(ROWS, F32, sums["runs"] if observed == "sums" else x.shape[1])
    plan.op(plan_writer.GATHER_ROWS, "gather", [total if observed == "sums" else y], [plan.logits])
    executor = _runtime.CpuExecutor(*plan.write(folder), threads, "map")
    executor.allocate([], STEP, STEP, 1)
    return executor


def run(executor: _runtime.CpuExecutor, ids: list[int]) -> np.ndarray:
    every = list(range(len(ids)))
    return executor.step(ids, every, [0, len(ids)], [len(ids)], every, [])


@sweep("size", [1, 15, 16, 17, 31, 32, 33, 300])
@pytest.mark.parametrize("threads", [1, 3])
def test_the_instructions_give_what_the_definitions_say(size: int, threads: int, tmp_path: Path) -> None:
    """Of runs of any width, of which the first and the last are cut; and a row has the same bits alone. A plan has as
    many tokens as its logits have columns."""
    columns, offset = 301, size // 2
    sums = places(7, columns, offset, size, -(-(offset + columns) // size))
    norm = {"start": 7, "offset": offset, "size": size, "first": 0, "eps": 1e-5, "weight_offset": 1.0}
    w = normal(columns, seed=1)
    for observed, tokens in (("sums", sums["runs"]), ("y", WIDTH)):
        x, ids = normal(tokens, WIDTH), [7 * i % tokens for i in range(STEP)]
        (total,) = square_sums.reference([x], sums, "float32")
        (y,) = rms_norm_by_sums.reference([x, total, w], norm, "float32")
        got = run(executor_of(tmp_path, x, w, sums, norm, threads, observed), ids)
        # A lane adds size / 16 squares that are rounded, and four sums join the lanes.
        error = (size / 16 + 6) * UNIT
        if observed == "sums":
            assert (np.abs(got - total[ids]) <= error * total[ids]).all()
        else:  # The root halves the error; seven operations follow, and w + 1 may cancel.
            assert (np.abs(got - y[ids]) <= (error / 2 + 7 * UNIT) * np.abs(y[ids]) + 4 * UNIT * np.abs(x).max()).all()
        alone = executor_of(tmp_path, x, w, sums, norm, 1, observed)
        assert all((run(alone, [row]) == got[ids.index(row)]).all() for row in ids[:5])


@pytest.mark.parametrize(
    ("changed", "why"),
    [({"start": 4}, "5 columns from 4 on"), ({"offset": 4}, "from 4 on in 2 runs of 4"), ({"size": 0}, "runs of 0")],
)
def test_infer_refuses_sums_of_columns_that_are_not_there(changed: dict[str, int], why: str) -> None:
    x, attrs = Value("x", "float32", ("tokens", 8)), places(3, 5, 3, 4, 2)
    assert square_sums.infer([x], attrs) == [("float32", ("tokens", 2))]
    with pytest.raises(GraphError, match=why):
        square_sums.infer([x], {**attrs, **changed})


@pytest.mark.parametrize("changed", [{"start": 4}, {"offset": 4}, {"first": 1}, {"size": 0}])
def test_infer_refuses_a_norm_of_columns_that_are_not_there(changed: dict[str, int]) -> None:
    x, sums, w = Value("x", "float32", ("tokens", 8)), Value("s", "float32", ("tokens", 2)), Value("w", "float32", (5,))
    attrs = {"start": 3, "offset": 3, "size": 4, "first": 0}
    assert rms_norm_by_sums.infer([x, sums, w], attrs) == [("float32", ("tokens", 8))]
    with pytest.raises(GraphError, match=r"rms_norm_by_sums: w \[5\] from column"):
        rms_norm_by_sums.infer([x, sums, w], {**attrs, **changed})


@pytest.mark.parametrize(
    ("sums", "norm", "why"),
    [
        ({"start": -1}, {}, "start and offset must not be negative"),
        ({"columns": -1}, {}, "columns must not be negative"),
        ({"start": 40}, {}, f"the columns must end by column {WIDTH}"),
        ({"size": 0}, {}, "size must be positive"),
        ({"offset": 2**31 - 1}, {}, "which is too many"),
        ({"runs": 9}, {}, "runs must be at least 10, are 9"),
        ({}, {"first": 1}, "sums must have 10 cols from 1 on"),
        ({}, {"offset": -1}, "start and offset must not be negative"),
        ({}, {"size": 2**31 - 1, "offset": 2**31 - 1}, "which is too many"),
        ({}, {"eps": -1.0}, "eps must not be negative"),
    ],
)
def test_the_reader_refuses(sums: dict, norm: dict, why: str, tmp_path: Path) -> None:
    whole = places(33, 300, 0, 30, 10)
    scale = {"start": 33, "offset": 0, "size": 30, "first": 0, "eps": 1e-5, "weight_offset": 0.0}
    x, w = normal(WIDTH, WIDTH), normal(300)
    with pytest.raises(EngineError, match=why):
        executor_of(tmp_path, x, w, {**whole, **sums}, {**scale, **norm}, 1, "y")
