"""take_columns: what the numpy definition means and refuses, and that the instruction moves the same numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support import plan_writer
from support.plan_writer import F32, ROWS, TOKENS, PlanWriter
from tensorwright.errors import EngineError, GraphError
from tensorwright.ir.graph import Value
from tensorwright.plugins.take_columns import op
from tensorwright.runtime import _runtime

pytestmark = pytest.mark.computes
WIDTH, STEP = 300, 130


def test_takes_columns_in_the_order_asked_for() -> None:
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    (y,) = op.reference([x, np.array([2, 0, 2, 1], np.float32)], {}, "float32")
    assert y.tolist() == x[:, [2, 0, 2, 1]].tolist()


def test_infer() -> None:
    x = Value("x", "bfloat16", ("tokens", 8))
    assert op.infer([x, Value("columns", "float32", (5,))], {}) == [("bfloat16", ("tokens", 5))]
    for wrong in (Value("columns", "int32", (5,)), Value("columns", "float32", (5, 1))):
        with pytest.raises(GraphError, match=r"take_columns: columns must be float32 \[k\]"):
            op.infer([x, wrong], {})


def executor_of(folder: Path, dtype: int, table: np.ndarray, columns: np.ndarray, threads: int) -> _runtime.CpuExecutor:
    """Takes columns of the rows of a table, which has as many rows as columns are taken."""
    plan = PlanWriter(len(table), STEP, 16, F32)
    rows = plan.buffer(TOKENS, dtype, WIDTH)
    weights = [plan.panels("table", table)]
    plan.op(plan_writer.EMBEDDING, "rows", outs=[rows], weights=weights, floats=[1.0])
    taken = plan.buffer(TOKENS, dtype, len(columns))
    plan.op(op.INSTRUCTION.number, "taken", [rows], [taken], [plan.vector("columns", columns)])
    plan.logits = plan.buffer(ROWS, dtype, len(columns))
    plan.op(plan_writer.GATHER_ROWS, "gather", [taken], [plan.logits])
    return _runtime.CpuExecutor(*plan.write(folder), threads, "map")


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("count", [1, WIDTH])
def test_the_instruction_moves_every_number(count: int, threads: int, tmp_path: Path) -> None:
    """The step is so long that the widest case is cut into tasks."""
    rng = np.random.default_rng(5)
    table = rng.standard_normal((count, WIDTH)).astype(np.float32)
    columns = rng.permutation(WIDTH)[:count].astype(np.float32)
    executor = executor_of(tmp_path, F32, table, columns, threads)
    executor.allocate([], STEP, STEP, 1)
    every = list(range(STEP))
    ids = [7 * i % count for i in every]
    got = executor.step(ids, every, [0, STEP], [STEP], every, [])
    (wanted,) = op.reference([table[ids], columns], {}, "float32")
    assert (got == wanted).all()


@pytest.mark.parametrize("number", [-1.0, float(WIDTH), float("nan"), float("inf")])
def test_a_column_that_does_not_exist_is_refused(number: float, tmp_path: Path) -> None:
    """The numbers are data of an engine's file."""
    table = np.zeros((2, WIDTH), np.float32)
    with pytest.raises(EngineError, match=f"take_columns: column .* is not one of {WIDTH}"):
        executor_of(tmp_path, F32, table, np.array([0, number], np.float32), 1)
