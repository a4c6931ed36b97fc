"""The options that `tensorwright bench latency` and `throughput` share: fields of `Load`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from tensorwright.runtime.commands.option_tables import LIMITED

if TYPE_CHECKING:
    from tensorwright.runtime.tools.bench_engine import Load


def load_options(batch_size: int, requests: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Gives a command the options, with these defaults."""
    options: list[tuple[str, dict[str, Any]]] = [
        ("--input-len", {"type": int, "default": 512, "help": "Tokens of a prompt, random ids."}),
        ("--output-len", {"type": int, "default": 128, "help": "Tokens generated for each."}),
        ("--batch-size", {"type": int, "default": batch_size, "help": "Requests that run at once."}),
        ("--requests", {"type": int, "default": requests, "help": "Requests that are measured."}),
        ("--warmup", {"type": int, "default": 1, "help": "Batches that run first and are not measured."}),
        ("--seed", {"type": int, "default": 0, "help": "Of the random ids."}),
        ("--max-num-tokens", {"type": int, "help": "Most tokens of one step. Default: 512" + LIMITED}),
        ("--threads", {"type": int, "help": "Default: one per physical core."}),
        ("--kv-cache-memory", {"help": 'Such as "512MiB". Default: half of the free memory, or what is useful.'}),
    ]

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for name, settings in reversed(options):
            command = click.option(name, show_default="default" in settings, **settings)(command)
        return command

    return decorate


def take_load(options: dict[str, Any]) -> Load:
    """Takes what load_options gave out of `options`."""
    from dataclasses import fields

    from tensorwright.runtime.tools.bench_engine import Load

    return Load(**{field.name: options.pop(field.name) for field in fields(Load)})
