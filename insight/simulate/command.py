"""Runs `tensorwright simulate`."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.console import Console

from tensorwright.builder.cli import progress_bar
from tensorwright.click_options import take
from tensorwright.errors import InvalidOptionError
from tensorwright.insight.simulate.replica_file import write_replica
from tensorwright.insight.simulate.show import as_dict, lines_of
from tensorwright.insight.simulate.simulate import known_replica, simulate
from tensorwright.new_file import NewFile
from tensorwright.options.build import BuildFields
from tensorwright.options.declare import Door, check_values
from tensorwright.options.engine import EngineFields
from tensorwright.options.simulate import FleetFields, GoalFields, TrafficFields


def run_simulate(
    model: str | None,
    find: bool,
    measure_seconds: float,
    save_costs: str | None,
    as_json: bool,
    options: dict[str, Any],
) -> None:
    """Simulates and prints. options: those of the command, by name."""
    fleet = FleetFields(**take(options, Door.SIMULATE, FleetFields))
    traffic = TrafficFields(**take(options, Door.SIMULATE, TrafficFields))
    goals = GoalFields(**take(options, Door.SIMULATE, GoalFields))
    for values in (fleet, traffic, goals):
        check_values(values, type(values), door=Door.SIMULATE)
    if not 0 < measure_seconds <= 3600:
        raise InvalidOptionError(f"--measure-seconds must be above 0, up to 3600, got {measure_seconds:g}")
    engine = take(options, Door.SIMULATE, EngineFields)
    build_options = take(options, Door.SIMULATE, BuildFields)
    file = None if save_costs is None else NewFile(save_costs, "--save-costs")
    try:
        with progress_bar(Console(stderr=True)) as progress:
            shape, costs = known_replica(model, fleet, engine, build_options, measure_seconds, progress)
            if file is not None:
                write_replica(file, shape, costs)
            done = simulate(shape, costs, fleet, traffic, goals, find=find, progress=progress)
    finally:
        if file is not None:
            file.discard()
    click.echo(json.dumps(as_dict(done), indent=2) if as_json else "\n".join(lines_of(done)))
