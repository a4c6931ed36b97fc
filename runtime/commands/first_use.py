"""Opens the engine that a command names, and tells of a build before it begins."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any

import click

from tensorwright.click_options import take
from tensorwright.options.build_choices import BuildChoices
from tensorwright.options.declare import Door
from tensorwright.runtime.api.engine_cache import cache_root
from tensorwright.runtime.api.model_cache import is_cached
from tensorwright.runtime.api.open_model import find_model, is_model, open_model
from tensorwright.runtime.engine.engine_dir import EngineDir


def tell_of_build(path: Path, choices: BuildChoices) -> None:
    """Announces the build of an engine if a model directory is used for the first time. A build takes minutes, and
    silence would look like a fault."""
    if is_model(path) and not is_cached(path, choices):
        click.echo(f"building the engine of {path} into {cache_root()}, once; this may take minutes", err=True)


def open_named(name: str, door: Door, options: dict[str, Any]) -> tuple[EngineDir, IO[str] | None]:
    """Opens the engine, model directory or model of the hub that the user names, and returns it with its lease.

    options: those of the command. The ones of BuildChoices and the revision are taken out of it.
    """
    choices = BuildChoices(**take(options, door, BuildChoices))
    path = find_model(name, options.pop("revision"))
    tell_of_build(path, choices)
    return open_model(path, choices)
