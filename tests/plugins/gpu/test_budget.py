"""Kernels stay within their budgets, and the table of docs/gpu-kernels.md is what the compiler reports."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path

import pytest

from support.places import ROOT
from tensorwright.errors import InvalidOptionError, KernelError
from tensorwright.plugins.gpu import budget, inner_loops, report
from tensorwright.plugins.gpu.compile import compile_kernel, import_triton

PAGE = ROOT / "docs" / "gpu-kernels.md"
SHOWN = budget.shown()
BY_SM = [budget.shown(sm) for sm in budget.SHOWN_SMS]


@cache
def stated(part: str = report.MEASURED) -> list[list[str]]:
    """The cells of the page's rows."""
    rows = report.table_of(PAGE.read_text(encoding="utf-8"), part).split("\n")[4:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_the_page_names_each_kernel_and_its_budget() -> None:
    assert len({name for name, _ in SHOWN}) == len(SHOWN)
    for index, (cells, (name, _)) in enumerate(zip(stated(), SHOWN, strict=True)):
        specs = [shown[index][1] for shown in BY_SM]
        blank = [cell.strip() for cell in report.row(name, specs, ["-"] * 5).strip("|").split("|")]
        assert (cells[0], cells[1], cells[-1]) == (blank[0], blank[1], blank[-1])
    assert {spec.kernel for _, spec in SHOWN} == set(budget.BUDGETS)


LOOPS = [inner_loops.loops(sm) for sm in inner_loops.SMS]
COMPILED_FOR_LOOPS = {(sm, loop.spec) for sm, loops in zip(inner_loops.SMS, LOOPS, strict=True) for loop in loops}
FORMS = [name.removeprefix("attention, decode, ") for name, _ in SHOWN if name.startswith("attention, decode, ")]
IN_TURN = [f"attention, {('listed ' * (i % 2))}decode, {form}" for i, form in enumerate(FORMS)]
"""Decodes whose work is listed are the same code but for where it comes from: one of the two is compiled of a form."""
COMPILED = [i for i, (name, _) in enumerate(SHOWN) if "decode, " not in name or name in IN_TURN]


def sm_of(index: int) -> int:
    """Of SHOWN_SMS one for each kernel, in turn: all of them take a minute. A kernel that is compiled to count a loop
    is compiled for no other SM."""
    shared = [at for at, sm in enumerate(budget.SHOWN_SMS) if (sm, BY_SM[at][index][1]) in COMPILED_FOR_LOOPS]
    return budget.SHOWN_SMS[shared[index % len(shared)] if shared else index % len(budget.SHOWN_SMS)]


@pytest.mark.parametrize("index", COMPILED, ids=[SHOWN[index][0] for index in COMPILED])
def test_a_kernel_takes_what_the_page_says(index: int, kernel_cache: Path) -> None:
    at = budget.SHOWN_SMS.index(sm_of(index))
    spec = BY_SM[at][index][1]
    kernel = compile_kernel(spec, budget.SHOWN_SMS[at], cache=kernel_cache)
    budget.check(kernel)
    if f"Triton {import_triton().__version__};" in PAGE.read_text(encoding="utf-8"):
        assert stated()[index][2 + at] == report.cell(kernel)


def test_each_kernel_is_compiled() -> None:
    assert {SHOWN[index][1].kernel for index in COMPILED} == set(budget.BUDGETS)
    assert {sm_of(index) for index in COMPILED} == set(budget.SHOWN_SMS)
    assert len(COMPILED) == len(SHOWN) - len(FORMS)


def test_each_number_of_the_page_is_within_its_budget() -> None:
    for cells in stated():
        limit = [float(number) for number in cells[-1].split(" / ")]
        for cell in cells[2:-1]:
            assert all(float(number) <= most for number, most in zip(cell.split(" / "), limit, strict=True)), cells


def test_a_kernel_over_its_budget_is_refused(kernel_cache: Path) -> None:
    kernel = compile_kernel(SHOWN[0][1], 80, cache=kernel_cache)
    for change in ({"registers": 97}, {"shared_bytes": 2048}, {"spill_bytes": 4}):
        with pytest.raises(KernelError, match="must be at most"):
            budget.check(dataclasses.replace(kernel, **change))
    with pytest.raises(KernelError, match="has no budget"):
        budget.check(dataclasses.replace(kernel, kernel="other"))


@pytest.mark.parametrize("index", range(len(LOOPS[0])), ids=[loop.name for loop in LOOPS[0]])
def test_an_inner_loop_has_as_few_instructions_as_the_page_says(index: int, kernel_cache: Path) -> None:
    """And no more than its limit, on both SMs; over an int8 cache decode spills eight registers on SM 90, the others
    spill nothing."""
    counts = []
    for sm, loops in zip(inner_loops.SMS, LOOPS, strict=True):
        counts.append(str(inner_loops.check(loops[index], compile_kernel(loops[index].spec, sm, cache=kernel_cache))))
    if f"Triton {import_triton().__version__};" in PAGE.read_text(encoding="utf-8"):
        row = report.loop_row(LOOPS[0][index], counts)
        assert stated(report.LOOPS)[index] == [cell.strip() for cell in row.strip("|").split("|")]


def test_a_loop_over_its_limits_is_refused(kernel_cache: Path) -> None:
    loop = LOOPS[0][-1]
    kernel = compile_kernel(loop.spec, 80, cache=kernel_cache)
    found = inner_loops.count(kernel)
    assert inner_loops.check(dataclasses.replace(loop, limit=found), kernel) == found
    with pytest.raises(KernelError, match=f"at most {found - 1} instructions and spill 0 bytes, got {found} and 0"):
        inner_loops.check(dataclasses.replace(loop, limit=found - 1), kernel)
    with pytest.raises(KernelError, match=r"got .* and 8"):
        inner_loops.check(loop, dataclasses.replace(kernel, spill_bytes=8))
    norm = compile_kernel(SHOWN[0][1], 80, cache=kernel_cache)
    with pytest.raises(KernelError, match="has no loop that multiplies"):
        inner_loops.count(norm)


CODE = """
.L_x_0:
        /*0000*/                   LDG.E R0, desc[UR4][R2.64] ;
.L_x_1:
        /*0010*/                   HMMA.16816.F32 R4, R8, R10, R4 ;
        /*0020*/              @P0 BRA `(.L_x_1) ;
        /*0030*/                   FADD R4, R4, R5 ;
        /*0040*/              @P1 BRA `(.L_x_0) ;
.L_x_2:
        /*0050*/                   FFMA R4, R4, R5, R6 ;
        /*0060*/                   BRA `(.L_x_3) ;
        /*0070*/         @P2 BRA.U `(.L_x_2) ;
.L_x_3:
        /*0080*/                   EXIT ;
"""


def test_the_loops_without_a_loop_inside_are_found() -> None:
    """A branch forward ends no loop."""
    assert [len(loop) for loop in inner_loops._inner_loops(CODE)] == [2, 3]


def test_a_page_without_a_table_is_refused() -> None:
    with pytest.raises(InvalidOptionError, match="must have a part between"):
        report.table_of("# A page\n")


def test_the_same_kernels_are_shown_for_each_sm() -> None:
    for shown in BY_SM:
        assert [(name, spec.kernel) for name, spec in shown] == [(name, spec.kernel) for name, spec in SHOWN]


def test_blocks_fit_a_multiprocessor() -> None:
    for _, spec in SHOWN:
        assert budget.BUDGETS[spec.kernel].registers * 32 * spec.num_warps <= budget.REGISTERS
        assert budget.BUDGETS[spec.kernel].shared_bytes <= max(budget.MAX_SHARED.values())
