"""Runs `tensorwright explain`."""

from __future__ import annotations

import json

import click
from rich.console import Console

from tensorwright.insight.explain.explain import as_dict, explain
from tensorwright.insight.explain.show import show


def run_explain(engine: str, device: str, measure: bool, as_json: bool) -> None:
    """Explains and prints."""
    explanation = explain(engine, device=device, measure=measure)
    if as_json:
        click.echo(json.dumps(as_dict(explanation), indent=2))
    else:
        show(explanation, Console(highlight=False))
