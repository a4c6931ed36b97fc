"""collectives: what the definitions mean and refuse. tests/runtime/engine/ranks runs the instructions."""

from __future__ import annotations

import numpy as np
import pytest

from support import plan_writer
from support.plan_writer import F32, ROWS, TOKENS, PlanWriter
from tensorwright.errors import EngineError, GraphError
from tensorwright.ir.graph import Value
from tensorwright.ir.interpret import interpret
from tensorwright.ir.parse import parse_graph
from tensorwright.plugins.collectives import all_gather, all_reduce, receive, send
from tensorwright.runtime import _runtime


def test_sums_are_added_in_the_order_of_ranks() -> None:
    parts = [np.array([[x]], np.float32) for x in (1e8, 1.0, -1e8, 1.0)]
    results = all_reduce.across([[part] for part in parts], [{}] * 4)
    assert [float(result[0, 0]) for result in results] == [1.0] * 4  # (1e8 + 1) is 1e8 in float32


def test_columns_are_joined_in_the_order_of_ranks() -> None:
    parts = [np.full((2, width), width, np.float32) for width in (3, 1)]
    attrs = [{"first": 0, "columns": 4}, {"first": 3, "columns": 4}]
    for result in all_gather.across([[part] for part in parts], attrs):
        assert result.tolist() == [[3, 3, 3, 1]] * 2


@pytest.mark.parametrize(
    ("firsts", "columns", "why"), [((0, 2), 4, "must follow those to 3"), ((0, 3), 5, "have 4 of 5 columns")]
)
def test_columns_that_leave_a_gap_are_refused(firsts, columns, why) -> None:
    parts = [[np.zeros((2, width), np.float32)] for width in (3, 1)]
    with pytest.raises(GraphError, match=why):
        all_gather.across(parts, [{"first": first, "columns": columns} for first in firsts])


def test_types() -> None:
    x = Value("x", "float32", ("tokens", 8))
    assert all_reduce.infer([x], {}) == send.infer([x], {"message": 0}) == [("float32", ("tokens", 8))]
    assert all_gather.infer([x], {"first": 8, "columns": 16}) == [("float32", ("tokens", 16))]
    positions = Value("positions", "int32", ("tokens",))
    assert receive.infer([positions], {"message": 0, "columns": 5}) == [("float32", ("tokens", 5))]
    with pytest.raises(GraphError, match="must be 10 columns from 4 on"):
        all_gather.infer([x], {"first": 4, "columns": 10})


def test_one_rank_alone_computes_nothing_together() -> None:
    graph = parse_graph(
        'graph "g" stage cached {\n  %positions: int32[tokens] = input()\n'
        "  %x: float32[tokens, 4] = receive(%positions) {message = 0, columns = 4}\n  return %x\n}\n"
    )
    import torch

    with pytest.raises(GraphError, match="is what several ranks do together"):
        interpret(graph, {"positions": torch.arange(3, dtype=torch.int32)}, lambda expr: torch.zeros(1))


def written(tmp_path, number: int, columns: int = 4, ints: tuple[int, ...] = ()) -> tuple[str, str]:
    """A plan whose rows of 4 columns go through one instruction that ranks compute together."""
    plan = PlanWriter(4, 8, 16, F32)
    rows = plan.buffer(TOKENS, F32, 4)
    plan.op(
        plan_writer.EMBEDDING,
        "rows",
        outs=[rows],
        weights=[plan.panels("t", np.ones((4, 4), np.float32))],
        floats=[1.0],
    )
    met = plan.buffer(TOKENS, F32, columns)
    plan.op(number, "met", [rows], [met], ints=list(ints))
    plan.logits = plan.buffer(ROWS, F32, columns)
    plan.op(plan_writer.GATHER_ROWS, "gather", [met], [plan.logits])
    return plan.write(tmp_path)


def test_a_plan_of_one_rank_does_not_run_alone(tmp_path) -> None:
    with pytest.raises(EngineError, match="is the plan of one rank of a parallel engine"):
        _runtime.CpuExecutor(*written(tmp_path, all_reduce.INSTRUCTION.number))


@pytest.mark.parametrize(
    ("number", "columns", "ints", "why"),
    [
        (all_reduce.INSTRUCTION.number, 5, (), "x must have 5 cols"),
        (all_gather.INSTRUCTION.number, 4, (1,), "x must be columns of y from first on"),
        (all_gather.INSTRUCTION.number, 4, (-1,), "x must be columns of y from first on"),
        (send.INSTRUCTION.number, 4, (-1,), "message must be 0 to"),
        (send.INSTRUCTION.number, 4, (0,), "logits_buffer must be -1 if a stage sends"),
    ],
)
def test_the_reader_refuses(tmp_path, number, columns, ints, why) -> None:
    with pytest.raises(EngineError, match=why):
        _runtime.CpuExecutor(*written(tmp_path, number, columns, ints))
