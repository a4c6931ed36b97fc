"""concat: what the numpy definition means, and that the instruction moves the same numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support import plan_writer
from support.plan_writer import F32, ROWS, TOKENS, PlanWriter
from tensorwright.plugins.concat import op
from tensorwright.runtime import _runtime

pytestmark = pytest.mark.computes


def tables(widths: list[int], rows: int) -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    return [rng.standard_normal((rows, width)).astype(np.float32) for width in widths]


def test_columns_stand_in_the_order_of_the_operands() -> None:
    parts: list[np.ndarray | None] = [*tables([2, 3], 4)]
    (y,) = op.reference([*parts, None, None], {}, "float32")
    assert y.shape == (4, 5)
    assert (y[:, :2] == parts[0]).all()
    assert (y[:, 2:] == parts[1]).all()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("widths", [[1, 1], [3, 16, 17], [300, 1, 64, 129]], ids=str)
def test_the_instruction_moves_every_number(widths: list[int], threads: int, tmp_path: Path) -> None:
    """The step is so long that the widest case is cut into tasks."""
    total, step = sum(widths), 130
    plan = PlanWriter(total, step, 16, F32)
    made = tables(widths, total)
    buffers = [plan.buffer(TOKENS, F32, width) for width in widths]
    for i, (buffer, table) in enumerate(zip(buffers, made, strict=True)):
        plan.op(plan_writer.EMBEDDING, f"{i}", outs=[buffer], weights=[plan.panels(f"{i}", table)], floats=[1.0])
    joined = plan.buffer(TOKENS, F32, total)
    plan.op(op.INSTRUCTION.number, "joined", buffers, [joined])
    plan.logits = plan.buffer(ROWS, F32, total)
    plan.op(plan_writer.GATHER_ROWS, "gather", [joined], [plan.logits])
    executor = _runtime.CpuExecutor(*plan.write(tmp_path), threads, "map")
    executor.allocate([], step, step, 1)
    every = list(range(step))
    ids = [7 * i % total for i in every]
    got = executor.step(ids, every, [0, step], [step], every, [])
    (wanted,) = op.reference([table[ids] for table in made], {}, "float32")
    assert (got == wanted).all()
