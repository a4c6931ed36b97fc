"""Prints a profile for people: two tables per phase, one by op and one by module."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from tensorwright.runtime.tools.ceilings import Ceilings, describe
from tensorwright.runtime.tools.profile import OpSums, PhaseProfile

COLUMNS = ("calls", "ms", "share", "GB", "GOP", "GB/s", "GOP/s", "roofline")


def show_profile(phases: list[PhaseProfile], ceilings: Ceilings, console: Console) -> None:
    console.print(describe(ceilings))
    console.print(
        "roofline: the time that the bytes or the operations need at these, whichever is longer, over the time taken; "
        "above 100 %: bytes came from a cache"
    )
    if not phases:
        console.print("no step was run while the profile was on")
    for phase in phases:
        console.print()
        console.print(
            f"[bold]{phase.phase}[/bold]: {phase.steps} steps, {phase.tokens} tokens in {phase.seconds * 1e3:.1f} ms, "
            f"{phase.tokens / phase.seconds:.1f} tokens/s, {phase.roofline:.0%} of the roofline"
        )
        console.print(_table("op", phase.ops, phase.seconds))
        console.print(_table("module", phase.modules, phase.seconds))


def _table(what: str, rows: list[OpSums], seconds: float) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(what, no_wrap=True)
    for column in COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    for sums in rows:
        name = f"{sums.module} {sums.op}" if what == "module" else sums.op
        table.add_row(
            f"  {name}",
            str(sums.calls),
            f"{sums.seconds * 1e3:.2f}",
            f"{sums.seconds / seconds:.1%}",
            f"{sums.bytes / 1e9:.3f}",
            f"{sums.operations / 1e9:.3f}",
            f"{sums.bytes_per_second / 1e9:.1f}",
            f"{sums.operations_per_second / 1e9:.1f}",
            f"{sums.roofline:.0%}",
        )
    return table
