"""Turns the options that tensorwright/options declares into options of click commands.

A command gets every declared option through `add_options`. An option that only one command has and that no record
holds, such as --json, is a plain `click.option` of that command.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from tensorwright.click_command import OTHERS, SectionedOption
from tensorwright.options.declare import Door, Group, Option, TextFile, TwoNumbers, options_at

Command = TypeVar("Command", bound=Callable[..., Any])


class ParsedChoice(click.Choice):
    """A click type that applies `parse` to the user's text and then compares the result with the choices."""

    def __init__(self, choices: tuple[str, ...], parse: Callable[[Any], Any]):
        super().__init__(choices)
        self.parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(self.parse(value), param, ctx)


def add_options(door: Door, *groups: Group, prefix: str = "", **defaults: Any) -> Callable[[Command], Command]:
    """Returns a decorator that adds the groups' options at this door to a command, in the order of their declaration.

    prefix: a text that is put before the names of the command's arguments.
    defaults: the options whose default differs in this command, as name=default.
    """

    def decorate(command: Command) -> Command:
        for option in reversed(options_at(door, *groups)):
            flag, settings = click_settings(option, door)
            if option.name in defaults:
                settings |= {"default": defaults[option.name], "show_default": True}
            command = click.option(flag, prefix + option.name, cls=SectionedOption, **settings)(command)
        return command

    return decorate


def take(values: dict[str, Any], door: Door, *groups: Group, prefix: str = "") -> dict[str, Any]:
    """Removes from `values` the arguments that `add_options` gave a command, and returns them by option name."""
    return {option.name: values.pop(prefix + option.name) for option in options_at(door, *groups)}


def given(values: dict[str, Any]) -> dict[str, Any]:
    """Returns the options that a user gave. It is meant for options whose default is None or empty."""
    return {name: value for name, value in values.items() if value not in (None, ())}


def click_settings(option: Option, door: Door) -> tuple[str, dict[str, Any]]:
    """Returns the flag and the keywords for a SectionedOption. Help shows the default, except None, False and ()."""
    shown = option.shown(door)
    settings: dict[str, Any] = {"help": shown.help, "section": option.section or OTHERS}
    if shown.metavar is not None:
        settings["metavar"] = shown.metavar
    if option.repeated:
        settings["multiple"] = True
    if option.kind is bool and "/" not in shown.flag:
        settings["is_flag"] = True
    elif option.kind is not bool:
        settings["type"] = _click_type(option, shown.choices or (), shown.minimum)
    if option.kind is TextFile:
        settings["callback"] = _read_text
    elif option.parse is not None and not shown.choices and option.repeated:
        settings["callback"] = _parser(option.parse)
    has_default = shown.default is not None and shown.default is not False and shown.default != ()
    if has_default or "/" in shown.flag:
        settings |= {"default": shown.default, "show_default": has_default}
    return shown.flag, settings


def _click_type(option: Option, choices: tuple[str, ...], minimum: int | None) -> Any:
    if choices:
        return click.Choice(choices) if option.parse is None else ParsedChoice(choices, option.parse)
    if option.kind is int and minimum is not None:
        return click.IntRange(min=minimum)
    if option.kind is TextFile:
        return click.File(encoding="utf-8")
    if option.kind is TwoNumbers:
        return int, int
    return option.kind if option.kind in (int, float) else str


def _parser(parse: Callable[[Any], Any]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    def callback(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
        try:
            return parse(value)
        except ValueError as error:
            raise click.BadParameter(str(error), ctx, param) from None

    return callback


def _read_text(ctx: click.Context, param: click.Parameter, file: Any) -> str | None:
    if file is None:
        return None
    try:
        text: str = file.read()
    except UnicodeDecodeError as error:
        raise click.BadParameter(f"must be UTF-8 text: {error}", ctx, param) from None
    return text
