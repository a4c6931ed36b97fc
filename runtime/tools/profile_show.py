"""Prints a profile for people: two tables per phase, one by op and one by module, and a third of experts."""

from __future__ import annotations

import math

from rich.console import Console
from rich.table import Table

from tensorwright.runtime.tools.ceilings import Ceilings, describe
from tensorwright.runtime.tools.profile import ExpertCounts, OpSums, PhaseProfile

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
        if phase.experts:
            each = sum(layer.bytes for layer in phase.experts) / phase.tokens
            console.print(f"experts: {each / 1e6:.3f} MB per token were read and written for them")
            console.print(_experts(phase.experts))


def _experts(layers: list[ExpertCounts]) -> Table:
    """Returns a row for each layer of experts. An expert is shown with its share of all that were taken."""
    table = Table(box=None, pad_edge=False)
    table.add_column("experts of", no_wrap=True)
    for column in ("experts", "taken", "most", "least", "never", "entropy, bits", "at most"):
        table.add_column(column, justify="right", no_wrap=True)
    for layer in layers:
        total, order = max(1, sum(layer.taken)), range(len(layer.taken))
        most, least = (choose(order, key=layer.taken.__getitem__) for choose in (max, min))
        table.add_row(
            f"  {layer.module}",
            str(len(layer.taken)),
            str(sum(layer.taken)),
            f"{most}: {layer.taken[most] / total:.1%}",
            f"{least}: {layer.taken[least] / total:.1%}",
            str(layer.taken.count(0)),
            f"{layer.entropy:.2f}",
            f"{math.log2(len(layer.taken)):.2f}",
        )
    return table


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
