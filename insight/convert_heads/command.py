"""Runs `tensorwright convert-heads`."""

from __future__ import annotations

import json

import click
from rich.console import Console

from tensorwright.builder.cli import progress_bar
from tensorwright.insight.convert_heads.convert import Converted, convert
from tensorwright.sizes import format_size

ADVICE = (
    "This is a start, and not a model to serve: it wants to be trained on, for some per cent of its first training "
    "(Ainslie et al. 2023). For models as small as pico, from a checkout: "
    "python -m tensorwright.models.train_pooled_heads"
)


def run_convert_heads(model: str, out: str, kv_heads: int, text: str | None, measure: bool, as_json: bool) -> None:
    """Converts and prints."""
    with progress_bar(Console(stderr=True)) as progress:
        made = convert(model, out, kv_heads, text=text, measure=measure, progress=progress)
    if as_json:
        click.echo(json.dumps(as_dict(made), indent=2))
        return
    heads = made.heads
    click.echo(f"{made.path}: {heads.queries} heads of q, {heads.before} -> {heads.after} of K and V, each the mean of "
               f"{heads.pooled}")  # fmt: skip
    if made.before is not None and made.after is not None:
        click.echo(
            f"KV cache: {format_size(made.before.kv_bytes)} -> {format_size(made.after.kv_bytes)} per token; "
            f"perplexity of {made.tokens} tokens of {made.text}: {made.before.perplexity:.4g} -> "
            f"{made.after.perplexity:.4g}"
        )
    click.echo(ADVICE)


def as_dict(made: Converted) -> dict[str, object]:
    """Returns the conversion as plain data. Sizes are bytes."""
    measured = None
    if made.before is not None and made.after is not None:
        measured = {
            "text": made.text, "tokens": made.tokens, "perplexity": [made.before.perplexity, made.after.perplexity],
            "kv_bytes_per_token": [made.before.kv_bytes, made.after.kv_bytes],
        }  # fmt: skip
    heads = made.heads
    return {
        "path": str(made.path),
        "heads": heads.queries,
        "kv_heads": [heads.before, heads.after],
        "measured": measured,
    }
