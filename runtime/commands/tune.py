"""Runs `tensorwright tune`, which measures what is best on this machine and keeps it beside the engine."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict

import click
from rich.console import Console
from rich.table import Table

from tensorwright.errors import InvalidOptionError
from tensorwright.runtime.base.progress import progress_bar
from tensorwright.runtime.engine import native
from tensorwright.runtime.engine.engine_dir import open_engine
from tensorwright.runtime.engine.executors import require_cpu
from tensorwright.runtime.engine.tuning import Tuning, check_writable, write_tuning
from tensorwright.runtime.tools.tune import stage_names, tune


def tune_engine(engine: str, seconds: float, clear: bool, as_json: bool) -> None:
    """Prints what was found, and writes it to the engine's folder."""
    if not (math.isfinite(seconds) and seconds > 0):
        raise InvalidOptionError(f"--seconds must be a positive number, got {seconds}")
    opened = open_engine(engine)
    require_cpu(opened, "tensorwright tune")
    machine = native.this_machine()
    check_writable(opened.path)
    if clear:
        write_tuning(opened.path, None, machine)
        return
    with progress_bar("measuring", len(stage_names()), sys.stderr.isatty() and not as_json) as advance:
        found = tune(opened, seconds, lambda: advance(1))
    path = write_tuning(opened.path, found, machine)
    if as_json:
        click.echo(json.dumps({"path": str(path), **asdict(found)}, indent=2))
    else:
        _show(found, str(path))


def _show(found: Tuning, path: str) -> None:
    console = Console(highlight=False, markup=False)
    table = Table(title=f"{found.processor}, {found.cores} cores")
    for column in ("step", "default", "tuned", "times as fast"):
        table.add_column(column)
    for work, seconds in found.seconds.items():
        ratio = seconds["default"] / seconds["tuned"]
        table.add_row(work, f"{1e3 * seconds['default']:.3f} ms", f"{1e3 * seconds['tuned']:.3f} ms", f"{ratio:.2f}")
    console.print(table)
    chosen = ({} if found.threads is None else {"threads": found.threads}) | found.work_cut
    words = ", ".join(f"{name} {value}" for name, value in chosen.items())
    console.print(f"{words or 'the defaults are best'}; kept in {path}")
