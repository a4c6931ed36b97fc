"""python -m tensorwright.plugins.gpu.report [PAGE]: prints what the shown kernels take on each SM, and inner loops.

With PAGE, such as docs/gpu-kernels.md, it replaces the tables of that page.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

from tensorwright.errors import InvalidOptionError
from tensorwright.plugins.gpu import budget, inner_loops
from tensorwright.plugins.gpu.bundle import CompiledKernel
from tensorwright.plugins.gpu.compile import compile_kernel, import_triton
from tensorwright.plugins.gpu.launch import KernelSpec

MEASURED, LOOPS = "measured", "loops"
"""The parts of a page that hold the tables."""


def cell(kernel: CompiledKernel) -> str:
    """Returns "registers of a thread / KiB of shared memory of a block / bytes spilt"."""
    return f"{kernel.registers} / {kernel.shared_bytes / 1024:.1f} / {kernel.spill_bytes}"


def row(name: str, specs: list[KernelSpec], cells: list[str]) -> str:
    """`specs`: the kernel for each of SHOWN_SMS."""
    limit = budget.BUDGETS[specs[0].kernel]
    allowed = f"{limit.registers} / {limit.shared_bytes / 1024:.1f} / {limit.spill_bytes}"
    return f"| {name} | {threads(specs)} | {' | '.join(cells)} | {allowed} |"


def threads(specs: list[KernelSpec]) -> str:
    """Returns the threads of a block, and the SMs for which there are more or fewer than for the first."""
    counts = [32 * spec.num_warps for spec in specs]
    others = [f"{n} on {sm}" for n, sm in zip(counts, budget.SHOWN_SMS, strict=True) if n != counts[0]]
    return ", ".join([str(counts[0]), *others])


def heading() -> list[str]:
    return [
        f"Triton {import_triton().__version__}; registers / KiB of shared memory / bytes spilt.",
        "",
        "| kernel | threads | " + " | ".join(f"SM {sm}" for sm in budget.SHOWN_SMS) + " | budget |",
        "|---|---|" + "---|" * (len(budget.SHOWN_SMS) + 1),
    ]


def table(compiled: Callable[[KernelSpec, int], CompiledKernel] = compile_kernel) -> str:
    """Returns the table. Raises KernelError if a kernel goes over its budget."""
    lines = heading()
    for of_each_sm in zip(*(budget.shown(sm) for sm in budget.SHOWN_SMS), strict=True):
        name, specs = of_each_sm[0][0], [spec for _, spec in of_each_sm]
        kernels = [compiled(spec, sm) for spec, sm in zip(specs, budget.SHOWN_SMS, strict=True)]
        for kernel in kernels:
            budget.check(kernel)
        lines.append(row(name, specs, [cell(kernel) for kernel in kernels]))
    return "\n".join(lines)


def loop_row(loop: inner_loops.Loop, counts: list[str]) -> str:
    return f"| {loop.name} | {loop.step_bytes / 1024:.2f} | {' | '.join(counts)} | {loop.limit} |"


def loop_table(compiled: Callable[[KernelSpec, int], CompiledKernel] = compile_kernel) -> str:
    """Returns the table of inner loops. Raises KernelError if one goes over its limits."""
    lines = loop_heading()
    for of_each_sm in zip(*(inner_loops.loops(sm) for sm in inner_loops.SMS), strict=True):
        counts = [
            str(inner_loops.check(loop, compiled(loop.spec, sm)))
            for loop, sm in zip(of_each_sm, inner_loops.SMS, strict=True)
        ]
        lines.append(loop_row(of_each_sm[0], counts))
    return "\n".join(lines)


def loop_heading() -> list[str]:
    return [
        f"Triton {import_triton().__version__}; instructions of one warp in one round of the loop.",
        "",
        "| loop | KiB of a round | " + " | ".join(f"SM {sm}" for sm in inner_loops.SMS) + " | limit |",
        "|---|---|" + "---|" * (len(inner_loops.SMS) + 1),
    ]


def marks(part: str) -> tuple[str, str]:
    """Returns the lines before and behind a table of a page."""
    return f"<!-- {part}: begin -->", f"<!-- {part}: end -->"


def table_of(page: str, part: str = MEASURED) -> str:
    """Returns a table of a page. Raises InvalidOptionError if there is none."""
    begin, end = marks(part)
    found = re.search(f"{begin}\n(.*)\n{end}", page, re.DOTALL)
    if found is None:
        raise InvalidOptionError(f"the page must have a part between {begin} and {end}, and has none")
    return found.group(1)


def main(arguments: list[str]) -> None:
    tables = {MEASURED: table(), LOOPS: loop_table()}
    print(*tables.values(), sep="\n\n")
    for name in arguments:
        path = Path(name)
        page = path.read_text(encoding="utf-8")
        for part, text in tables.items():
            begin, end = marks(part)
            page = page.replace(f"{begin}\n{table_of(page, part)}\n{end}", f"{begin}\n{text}\n{end}")
        path.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
