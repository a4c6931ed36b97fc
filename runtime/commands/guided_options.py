"""The options of `tensorwright run` that say what the output must look like."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from tensorwright.runtime.guided.params import GuidedDecodingParams


def _text(ctx: click.Context, param: click.Parameter, file: Any) -> str | None:
    if file is None:
        return None
    try:
        return file.read()
    except UnicodeDecodeError as error:
        raise click.BadParameter(f"must be UTF-8 text: {error}", ctx, param) from None


FILE = {"type": click.File(encoding="utf-8"), "callback": _text}

OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "json": ("--json-schema", {**FILE, "help": "The output is JSON that the schema in FILE admits."}),
    "json_object": ("--json-object", {"is_flag": True, "help": "The output is a JSON object."}),
    "whitespace_pattern": (
        "--whitespace-pattern",
        {"metavar": "REGEX", "help": "With JSON: what may stand between its parts, '' for the shortest JSON."},
    ),
    "regex": ("--regex", {"help": "The output matches this regular expression."}),
    "choice": ("--choice", {"multiple": True, "help": "The output is one of these texts. May be repeated."}),
    "grammar": ("--grammar", {**FILE, "help": "The output is of the language of FILE, in EBNF (::=) or Lark."}),
}
"""Field of GuidedDecodingParams -> its option, and what click is told of it."""


def guided_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives the command all OPTIONS, in their order."""
    for field, (declaration, settings) in reversed(OPTIONS.items()):
        command = click.option(declaration, f"guided_{field}", **settings)(command)
    return command


def take_guided(options: dict[str, Any]) -> GuidedDecodingParams | None:
    """Takes what guided_options gave out of `options`; None if nothing was asked for."""
    from tensorwright.runtime.guided.params import KINDS, GuidedDecodingParams

    given = {field: options.pop(f"guided_{field}") for field in OPTIONS}
    asked = {field: value for field, value in given.items() if value not in (None, False, ())}
    kinds = [field for field in asked if field in KINDS]
    if len(kinds) > 1:
        names = " and ".join(OPTIONS[field][0] for field in kinds)
        raise click.UsageError(f"one of them at most: {names}")
    return GuidedDecodingParams(**asked) if asked else None
