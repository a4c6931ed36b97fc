"""Prints an explanation for people."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from tensorwright.insight.explain.explain import LEAST_WORTH, Explanation
from tensorwright.insight.explain.finding import Finding, Status, Worth
from tensorwright.sizes import format_size

STYLES = {Status.DONE: "green", Status.MISSED: "red", Status.LOSSY: "yellow", Status.OFFERED: "cyan"}


def show(explanation: Explanation, console: Console) -> None:
    """Prints the rows by group, and what to do next."""
    times = explanation.seconds
    if times:
        said = ", ".join(f"{name} {seconds * 1e3:.3g} ms" for name, seconds in times.items())
        console.print(Text(f"Predicted on {explanation.device.name} ({explanation.device.source}): {said}"))
    if explanation.target not in explanation.device.platform.targets:
        runs = explanation.device.platform.runs
        console.print(Text(f"This engine, of target {explanation.target}, does not run there. {runs}"))
    console.print(Text("A factor says how many times as fast something is with the optimization as without it."))
    group = ""
    for finding in explanation.findings:
        if finding.group != group:
            group = finding.group
            console.print(Text(f"\n{group.upper()}", style="bold"))
        _show_row(finding, console)
    console.print()
    _show_next(explanation.next, console)


def _show_row(finding: Finding, console: Console) -> None:
    """Prints a row on two lines, which need no wide terminal."""
    line = Text(f"  {finding.name}: ")
    line.append(finding.status.value, style=STYLES.get(finding.status, "dim"))
    if worth := worth_text(finding.worth):
        line.append(f"; {worth}")
    console.print(line)
    console.print(Padding(Text(finding.detail, style="dim"), (0, 0, 0, 6)))


def worth_text(worth: Worth | None) -> str:
    """Returns a worth in words: "decode x1.2, saves 3 MiB (roofline)"; "" if nothing is known."""
    if worth is None:
        return ""
    pairs = (("decode", worth.decode), ("batch", worth.batch), ("prompt", worth.prefill))
    parts = [f"{name} x{factor:.2f}" for name, factor in pairs if factor is not None and abs(factor - 1) >= 0.005]
    factors = [f"{', '.join(parts)} ({worth.how})"] if parts else []
    if not parts and any(factor is not None for _, factor in pairs):
        factors = [f"less than 1 % ({worth.how})"]
    return ", ".join(factors + ([f"saves {format_size(worth.bytes)}"] if worth.bytes else []))


def _show_next(rows: tuple[Finding, ...], console: Console) -> None:
    if not rows:
        console.print(Text(f"Nothing is left that would bring more than {LEAST_WORTH - 1:.0%}."))
        return
    console.print(Text("What to do next, in order of worth", style="bold"))
    for number, finding in enumerate(rows, 1):
        page = f"; {finding.page}" if finding.page else ""
        lossy = " (lossy)" if finding.status is Status.LOSSY else ""
        console.print(Text(f"  {number}. {finding.name}{lossy}: {worth_text(finding.worth)}: {finding.advice}{page}"))
