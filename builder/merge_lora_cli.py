"""Runs `tensorwright merge-lora`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click
from rich.console import Console

from tensorwright.builder.cli import progress_bar
from tensorwright.errors import BuildError, reason
from tensorwright.models.checkpoint import open_checkpoint
from tensorwright.models.merge_lora import merge_lora


def run_merge_lora(model: str, adapter: str, out: str, as_json: bool) -> None:
    """Merges and prints. Raises what `merge_lora` raises, and BuildError if the checkpoint cannot be written."""
    place = Path(os.path.abspath(os.path.expanduser(out)))
    with progress_bar(Console(stderr=True)) as progress:
        try:
            merged = merge_lora(
                open_checkpoint(model), adapter, place, lambda done, total: progress("merge", done, total)
            )
        except OSError as error:
            raise BuildError(f"{place} cannot be written: {reason(error)}") from error
    if as_json:
        click.echo(json.dumps({"path": str(merged.path), "modules": merged.modules, "rank": merged.rank}, indent=2))
        return
    click.echo(f"{merged.path}: {merged.modules} modules merged, of rank {merged.rank} at most")
