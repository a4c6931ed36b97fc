"""Runs `tensorwright estimate`."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.console import Console

from tensorwright.builder.cli import progress_bar
from tensorwright.click_options import take
from tensorwright.insight.estimate.estimate import estimate
from tensorwright.insight.estimate.show import as_dict, devices_as_dict, show, show_devices
from tensorwright.insight.simulate.estimate_fleet import check_fleet, estimate_fleet, fleet_as_dict, fleet_lines
from tensorwright.options.bench import LoadTestFields
from tensorwright.options.build import BuildFields
from tensorwright.options.declare import Door


def run_estimate(model: str, as_json: bool, options: dict[str, Any]) -> None:
    """Estimates and prints. options: those of the command, by name."""
    build_options = take(options, Door.ESTIMATE, BuildFields)
    load = take(options, Door.ESTIMATE, LoadTestFields)
    check_fleet(**load)
    fleet = None
    with progress_bar(Console(stderr=True)) as progress:
        found = estimate(model, build_options=build_options, progress=progress, **options)
        if load["rate"] is not None:
            fleet = estimate_fleet(found, progress=progress, **load)
    if as_json:
        more = {} if fleet is None else {"fleet": fleet_as_dict(fleet)}
        click.echo(json.dumps(as_dict(found) | more, indent=2))
    else:
        show(found, Console(highlight=False))
        if fleet is not None:
            click.echo("\n".join(fleet_lines(fleet)))


def list_devices(as_json: bool) -> None:
    """Prints the table of devices."""
    if as_json:
        click.echo(json.dumps(devices_as_dict(), indent=2))
    else:
        show_devices(Console(highlight=False))
