"""Options of a command as a table: a field of some parameters, its option, and what click is told of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from tensorwright.engine_format.dtypes import full_name

LIMITED = ", or what a TensorRT engine was built for."
"""How the help of a limit of steps ends."""

GENERATION_CONFIG: tuple[str, dict[str, Any]] = (
    "--generation-config",
    {
        "type": click.Choice(["model", "neutral"]),
        "default": "model",
        "help": "Defaults of sampling: what the model's generation_config.json names, or none of it.",
    },
)
"""Of LLM's keyword of that name."""


class DtypeChoice(click.Choice):
    """A choice of element types, which takes their short names too."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(full_name(value), param, ctx)


OptionTable = dict[str, tuple[str, dict[str, Any]]]


def add_options(command: Callable[..., Any], table: OptionTable) -> Callable[..., Any]:
    """Gives the command all options of the table, in its order. Help texts show defaults other than None."""
    for field, (declaration, settings) in reversed(table.items()):
        shown = settings.get("default") is not None
        command = click.option(declaration, field, show_default=shown, **settings)(command)
    return command
