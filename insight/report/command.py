"""Runs `tensorwright report`."""

from __future__ import annotations

import click
from rich.console import Console

from tensorwright.builder.cli import progress_bar
from tensorwright.errors import MissingDependencyError
from tensorwright.insight.report.collect import collect
from tensorwright.installing import install
from tensorwright.new_file import NewFile
from tensorwright.sizes import format_size


def write_report(engine: str, out: str, model: str | None, runs: bool) -> None:
    """Writes the page, beside its place and then into it. Raises what `collect` raises, InvalidOptionError for a place
    that cannot be written, and MissingDependencyError without Bokeh."""
    try:
        from tensorwright.insight.report.page import render
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "bokeh":
            raise
        raise MissingDependencyError(f"a report needs bokeh, which is not installed: {install('report')}") from error
    place = NewFile(out, "out")
    try:
        with progress_bar(Console(stderr=True)) as progress:
            page = render(collect(engine, model, run=runs, progress=progress))
        with place.write() as file:
            file.write(page)
    finally:
        place.discard()
    click.echo(f"{place.path}: {format_size(place.path.stat().st_size)}")
