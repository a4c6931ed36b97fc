"""Defines `tensorwright rebuild`, which builds an engine again, for another target or in other formats."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.console import Console

from tensorwright.builder.cli import progress_bar, show
from tensorwright.builder.phases import process_start
from tensorwright.builder.process import terminate_as_interrupt
from tensorwright.builder.rebuild import rebuild
from tensorwright.click_command import SectionedCommand
from tensorwright.click_options import add_options, given
from tensorwright.engine_format.engine_folder import EngineFolder
from tensorwright.options.build import BuildFields
from tensorwright.options.declare import Door

EPILOG = (
    "Examples:  build-engine models/pico out/pico --keep-weights, then tensorwright rebuild out/pico out/pico4 "
    "--quantize int4;  tensorwright rebuild out/pico out/onnx --target onnx --model models/pico"
)


@click.command(cls=SectionedCommand, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("engine")
@click.argument("out")
@click.option("--model", help="The checkpoint that ENGINE was built from, where it keeps no weights.")
@add_options(Door.REBUILD, BuildFields)
@click.option("--force", is_flag=True, help="Replace an engine that is already at OUT.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout and nothing else there.")
def rebuild_engine(engine: str, out: str, model: str | None, force: bool, as_json: bool, **options: Any) -> None:
    """Build ENGINE again at OUT: for another target, or with other options.

    An engine built with --keep-weights needs nothing else: its graph.txt is where this starts. Of any other engine
    the checkpoint must be given, and must be the very one.
    """
    changes = given(options)
    if changes.get("quantize") == "none":
        changes["quantize"] = None
    opened = EngineFolder.open(engine)
    try:
        with terminate_as_interrupt(), progress_bar(Console(stderr=True)) as progress:
            result = rebuild(
                opened.path, opened.config, out, model=model, overwrite=force, progress=progress,
                begin=process_start(), **changes,
            )  # fmt: skip
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt("interrupted; nothing half-built was left behind") from error
    if as_json:
        click.echo(json.dumps({"engine": out, "config": result.config, "report": result.report}))
    else:
        show(Console(), result)
