"""Results that may be written over an operand (`in_place` of the records) have the bits that they have elsewhere.

The planner of memory and the reader of plans both follow the records, so that a wrong record would go unnoticed there.
Here the instruction itself runs, from a plan of its own, at every level of instructions that the processor has. At one
level a product may have several kernels; these are called one by one as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from support import plan_writer
from support.isa_levels import PRESENT
from support.made_matmul import Matmul, same_bits
from support.made_quantized import QuantizedMatmul, number
from support.plan_writer import BF16, F32, ROWS, TOKENS, PlanWriter
from tensorwright.errors import EngineError
from tensorwright.ir.records import Instruction
from tensorwright.plugins.elementwise.op import encode
from tensorwright.plugins.registry import read_records
from tensorwright.runtime import _runtime, _testing

pytestmark = pytest.mark.computes

COLUMNS = 300
"""The columns of every buffer: no multiple of a vector, and the same for operands and results of products."""
STEP = 130
"""The tokens of the step, so many that each instruction is cut into tasks for two threads."""
RNG = np.random.default_rng(3)
MATRIX = RNG.standard_normal((COLUMNS, COLUMNS)).astype(np.float32)
VECTOR = RNG.standard_normal(COLUMNS).astype(np.float32)
QUANTIZED, WEIGHT_ONLY = 2, 3  # the layouts in a plan


@dataclass(frozen=True)
class Case:
    """An instruction with the operands and the results that it has, of which result `over` is one with an operand."""

    record: Instruction
    result: str
    operand: str
    without: str = ""

    @property
    def ins(self) -> list[str]:
        return [operand.name for operand in self.record.ins if operand.name != self.without]

    @property
    def outs(self) -> list[str]:
        return [result.name for result in self.record.outs if not (result.optional and self.without)]

    def __str__(self) -> str:
        return f"{self.record.name}: {self.result} over {self.operand}"


RECORDS = [
    record
    for record in read_records()
    if isinstance(record, Instruction) and record.in_place and not record.meets_ranks  # ranks' own tests run those
]
CASES = [Case(r, rule.result, over, rule.without) for r in RECORDS for rule in r.in_place for over in rule.over]


def may_be(record: Instruction, result: str, operand: str, without: str) -> bool:
    """Whether the record allows it in a plan that lacks the operand `without`."""
    return any(
        rule.result == result and operand in rule.over and rule.without in ("", without) for rule in record.in_place
    )


OTHERS = [
    case
    for record in RECORDS
    for without in ("", "residual")
    for result in record.outs
    for operand in record.ins
    for case in [Case(record, result.name, operand.name, without)]
    if case.operand in case.ins and case.result in case.outs
    if not may_be(record, result.name, operand.name, without)
]
"""All other pairs, which the reader of plans refuses."""


def quantized_panels(plan: PlanWriter, dtype: str) -> int:
    made = QuantizedMatmul(dtype, rows=1, n=COLUMNS, k=COLUMNS)
    n = -(-COLUMNS // 16) * 16
    layout = WEIGHT_ONLY if made.fmt.keeps_activations else QUANTIZED
    index = plan.weight("w", number(made.fmt), layout, n, COLUMNS, made.packed.tobytes())
    plan.weights[index] = (*plan.weights[index][:-1], made.fmt.group)
    return index


def emit_product(plan: PlanWriter, op: int, ins: list[int], outs: list[int], w: int) -> None:
    plan.op(op, "product", ins, outs, [w], ints=[0, COLUMNS])


def emit_layer_norm(plan: PlanWriter, op: int, ins: list[int], outs: list[int]) -> None:
    weights = [plan.vector("w", VECTOR), plan.vector("b", VECTOR[::-1])]
    plan.op(op, "norm", ins, outs, weights, ints=[0, 1, COLUMNS], floats=[1e-5, 0.5])


def emit_rms_norm_columns(plan: PlanWriter, op: int, ins: list[int], outs: list[int]) -> None:
    plan.op(op, "norm", ins, outs, [plan.vector("w", VECTOR[:37])], ints=[20, 4], floats=[1e-5, 0.5])


def emit_rms_norm_by_sums(plan: PlanWriter, op: int, ins: list[int], outs: list[int]) -> None:
    """The sums are any numbers here, so that eps keeps the means positive."""
    plan.op(op, "norm", ins, outs, [plan.vector("w", VECTOR[:148])], ints=[20, 5, 37, 4], floats=[1.0, 0.5])


def emit_elementwise(plan: PlanWriter, op: int, ins: list[int], outs: list[int]) -> None:
    ints, floats = encode("x0 tanh x1 w mul add x2 0.5 sub x3 maximum minimum x0 mul")
    plan.op(op, "program", ins, outs, [plan.vector("w", VECTOR)], ints=ints, floats=floats)


def emit_split_columns(plan: PlanWriter, op: int, ins: list[int], outs: list[int]) -> None:
    columns = 7 * np.arange(COLUMNS) % 99  # some columns are taken several times, and most are not
    plan.op(op, "split", ins, outs, [plan.vector("columns", columns.astype(np.float32))])


EMIT: dict[str, Callable[[PlanWriter, int, list[int], list[int]], None]] = {
    "add": lambda plan, op, ins, outs: plan.op(op, "sum", ins, outs),
    "elementwise": emit_elementwise,
    "layer_norm": emit_layer_norm,
    "matmul": lambda plan, op, ins, outs: emit_product(plan, op, ins, outs, plan.panels("w", MATRIX)),
    "quantized_matmul": lambda plan, op, ins, outs: emit_product(
        plan, op, ins, outs, quantized_panels(plan, "int4" if plan.act_dtype else "int8")
    ),
    "weight_only_matmul": lambda plan, op, ins, outs: emit_product(
        plan, op, ins, outs, quantized_panels(plan, "int4:wo" if plan.act_dtype else "fp8")
    ),
    "rms_norm": lambda plan, op, ins, outs: plan.op(
        op, "norm", ins, outs, [plan.vector("w", VECTOR)], floats=[1e-5, 0.5]
    ),
    "rms_norm_by_sums": emit_rms_norm_by_sums,
    "rms_norm_columns": emit_rms_norm_columns,
    "split_columns": emit_split_columns,
}
"""Writes each instruction, with operands and results of COLUMNS columns."""


def run(case: Case, folder: Path, dtype: int, observed: str, *, shared: bool) -> np.ndarray:
    """Runs the instruction, and returns its result `observed` [STEP, COLUMNS]."""
    plan = PlanWriter(COLUMNS, STEP, 16, dtype)
    operands = {name: plan.buffer(TOKENS, F32, COLUMNS) for name in case.ins}
    for i, buffer in enumerate(operands.values()):
        table = np.random.default_rng(i).standard_normal((COLUMNS, COLUMNS)).astype(np.float32)
        plan.op(plan_writer.EMBEDDING, f"{i}", outs=[buffer], weights=[plan.panels(f"{i}", table)], floats=[1.0])
    if "matmul" in case.record.name and dtype == BF16:  # x of a product has the type of activations
        x = plan.buffer(TOKENS, dtype, COLUMNS)
        plan.op(plan_writer.RMS_NORM, "x", [operands["x"]], [x], [plan.vector("x", VECTOR)], floats=[1e-5, 0.0])
        operands["x"] = x
    results = {
        name: operands[case.operand] if shared and name == case.result else plan.buffer(TOKENS, F32, COLUMNS)
        for name in case.outs
    }
    EMIT[case.record.name](plan, case.record.number, [*operands.values()], [*results.values()])
    plan.logits = plan.buffer(ROWS, F32, COLUMNS)
    plan.op(plan_writer.GATHER_ROWS, "gather", [results[observed]], [plan.logits])
    executor = _runtime.CpuExecutor(*plan.write(folder), 2, "map")
    executor.allocate([], STEP, STEP, 1)
    every = list(range(STEP))
    return executor.step([7 * i % COLUMNS for i in every], every, [0, STEP], [STEP], every, [])


@pytest.mark.parametrize("level", PRESENT)
@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_result_over_an_operand_has_the_same_bits(
    case: Case, dtype: int, level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENSORWRIGHT_ISA", level)
    for observed in case.outs:
        apart = run(case, tmp_path, dtype, observed, shared=False)
        assert np.isfinite(apart).all()
        assert same_bits(run(case, tmp_path, dtype, observed, shared=True), apart)


@pytest.mark.parametrize("case", OTHERS, ids=lambda case: f"{case} without {case.without or 'nothing'}")
def test_a_plan_that_writes_another_result_over_an_operand_is_refused(case: Case, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="may not share memory"):
        run(case, tmp_path, F32, case.result, shared=True)


def runnable(table: list[tuple[str, str, bool]]) -> list[int]:
    return [index for index, (_, _, present) in enumerate(table) if present]


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_every_kernel_of_a_product_writes_over_its_residual(dtype: int) -> None:
    made = Matmul(dtype, rows=9, n=37, k=41, bias=True, residual=True)
    for index in runnable(_testing.matmul_table(dtype)):
        assert same_bits(made.run(index, in_place=True), made.run(index))


@pytest.mark.parametrize("name", ["int4", "int8", "w8a8"])
def test_every_kernel_of_a_quantized_product_writes_over_its_residual(name: str) -> None:
    made = QuantizedMatmul(name, rows=9, n=37, k=300, bias=True, residual=True)
    for index in runnable(_testing.quantized_matmul_table(number(made.fmt))):
        assert same_bits(made.run(index, in_place=True), made.run(index))
