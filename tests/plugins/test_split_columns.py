"""split_columns: what the numpy definition means and refuses, and that the instruction moves the same numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support import plan_writer
from support.plan_writer import F32, ROWS, TOKENS, PlanWriter
from tensorwright.errors import EngineError, GraphError
from tensorwright.ir.graph import Value
from tensorwright.plugins.split_columns import op
from tensorwright.runtime import _runtime

pytestmark = pytest.mark.computes

STEP = 130
"""The tokens of the step, so many that the widest case is cut into tasks."""


def test_the_columns_are_taken_and_the_rest_has_zeros() -> None:
    x = np.arange(1, 9, dtype=np.float32).reshape(2, 4)
    rest, taken = op.reference([x, np.array([3, 0], np.float32)], {}, "float32")
    assert taken.tolist() == [[4, 1], [8, 5]]
    assert rest.tolist() == [[0, 2, 3, 0], [0, 6, 7, 0]]


def test_infer() -> None:
    x = Value("x", "bfloat16", ("tokens", 8))
    kinds = [("bfloat16", ("tokens", 8)), ("bfloat16", ("tokens", 2))]
    assert op.infer([x, Value("columns", "float32", (2,))], {}) == kinds
    with pytest.raises(GraphError, match="columns must be float32"):
        op.infer([x, Value("columns", "int32", (2,))], {})


def table(width: int) -> np.ndarray:
    return np.random.default_rng(5).standard_normal((width, width)).astype(np.float32)


def run(width: int, columns: list[float], observed: int, folder: Path) -> np.ndarray:
    """Returns what the instruction gives for result `observed` of all rows of the table, some several times.

    What was taken is spread over as many columns as the table has, since logits have them.
    """
    plan = PlanWriter(width, STEP, 16, F32)
    x, rest = plan.buffer(TOKENS, F32, width), plan.buffer(TOKENS, F32, width)
    taken = plan.buffer(TOKENS, F32, len(columns))
    plan.op(plan_writer.EMBEDDING, "x", outs=[x], weights=[plan.panels("t", table(width))], floats=[1.0])
    numbers = np.array(columns, np.float32)
    plan.op(op.INSTRUCTION.number, "split", [x], [rest, taken], [plan.vector("columns", numbers)])
    result = rest
    if observed == 1:
        result = plan.buffer(TOKENS, F32, width)
        spread = plan.panels("s", np.eye(width, len(columns), dtype=np.float32))
        plan.op(plan_writer.MATMUL, "spread", [taken], [result], [spread], ints=[0, width])
    plan.logits = plan.buffer(ROWS, F32, width)
    plan.op(plan_writer.GATHER_ROWS, "gather", [result], [plan.logits])
    executor = _runtime.CpuExecutor(*plan.write(folder), 2, "map")
    executor.allocate([], STEP, STEP, 1)
    every = list(range(STEP))
    got: np.ndarray = executor.step([7 * i % width for i in every], every, [0, STEP], [STEP], every, [])
    return got


@pytest.mark.parametrize("observed", [0, 1], ids=["rest", "taken"])
@pytest.mark.parametrize(("width", "columns"), [(2, [1]), (17, [16, 0, 3]), (300, [*range(0, 300, 7)])], ids=str)
def test_the_instruction_moves_every_number(width: int, columns: list[float], observed: int, tmp_path: Path) -> None:
    wanted = op.reference([table(width), np.array(columns, np.float32)], {}, "float32")[observed]
    padded = np.pad(wanted, [(0, 0), (0, width - wanted.shape[1])])
    assert (run(width, columns, observed, tmp_path) == padded[[7 * i % width for i in range(STEP)]]).all()


@pytest.mark.parametrize("column", [17, -1, float("nan"), float("inf")])
def test_a_column_that_does_not_exist_is_refused(column: float, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="is not one of 17"):
        run(17, [3, column], 0, tmp_path)
