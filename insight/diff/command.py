"""Runs `tensorwright diff`."""

from __future__ import annotations

import json

import click
from rich.console import Console

from tensorwright.insight.diff.diff import as_dict, diff
from tensorwright.insight.diff.show import show


def run_diff(a: str, b: str, measure: bool, as_json: bool) -> None:
    """Compares and prints."""
    found = diff(a, b, measure=measure)
    if as_json:
        click.echo(json.dumps(as_dict(found), indent=2, default=str))
    else:
        show(found, Console(highlight=False))
