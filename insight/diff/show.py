"""Prints what differs between two engines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tensorwright.insight.diff.diff import Change, Difference
from tensorwright.insight.diff.graphs import ModuleChange

SHOWN = 12
"""The most operations of a module that are shown of each side."""


def show(found: Difference, console: Console) -> None:
    """Prints the kinds that differ; and the speed of both."""
    console.print(Text(f"a: {found.a}\nb: {found.b}\n"))
    if found.equal:
        console.print(Text("The engines are equal but for where and when they were built.\n"))
    for title, rows in (
        ("Model", found.model), ("Build options", found.options), ("Formats", found.formats),
        ("Accuracy", found.accuracy), ("Files, bytes", found.sizes), ("Memory", found.memory),
        ("Passes", found.passes), ("Instructions of a step", found.instructions),
    ):  # fmt: skip
        _show_changes(console, title, rows)
    _show_graph(console, found.graph, found.nodes)
    _show_changes(console, f"Speed, seconds: {found.speed_is}", found.speed)


def _show_changes(console: Console, title: str, rows: Sequence[Change]) -> None:
    if not rows:
        return
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for name in ("", "a", "b", "b / a"):
        table.add_column(name, overflow="fold")
    for change in rows:
        ratio = "" if change.ratio is None else f"{change.ratio:.3g}"
        table.add_row(Text(f"  {change.name}"), Text(_text(change.a)), Text(_text(change.b)), ratio)
    console.print(table)
    console.print()


def _show_graph(console: Console, rows: Sequence[ModuleChange], nodes: tuple[int, int]) -> None:
    if not rows:
        return
    console.print(Text(f"Graph: {nodes[0]} operations in a, {nodes[1]} in b", style="bold"))
    for change in rows:
        more = f" and {change.layers - 1} like it" if change.layers > 1 else ""
        console.print(Text(f"  {change.module or 'outside of modules'}{more}"))
        for sign, lines, style in (("-", change.gone, "red"), ("+", change.new, "green")):
            for line in lines[:SHOWN]:
                console.print(Text(f"    {sign} {line}", style=style))
            if len(lines) > SHOWN:
                console.print(Text(f"    {sign} and {len(lines) - SHOWN} more", style=style))
    console.print()


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    return f"{value:.6g}" if isinstance(value, float) else json.dumps(value, default=str)
