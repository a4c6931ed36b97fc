"""The classes of the project's commands: help texts have options under headings, shells complete paths, and a group may
load a command when it is called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem

from tensorwright.errors import MissingDependencyError

PATH_ARGUMENTS = ("a", "adapter", "b", "engine", "engines", "files", "model", "out")
"""The arguments that are paths, or may be."""
FILE, FOLDER = "file", "dir"
"""click's names of the two kinds of paths that a shell can complete."""
OTHERS = "Options"


class PathText(click.types.StringParamType):
    """A text that a shell completes as a path. kind: FILE or FOLDER."""

    def __init__(self, kind: str):
        self.kind = kind

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type=self.kind)]


class SectionedOption(click.Option):
    """An option that stands under the heading `section` of the help text."""

    def __init__(self, *arguments: Any, section: str = OTHERS, **settings: Any):
        super().__init__(*arguments, **settings)
        self.section = section


class SectionedCommand(click.Command):
    """A command whose help text has a list of options for each section, and the options without one at the end."""

    def __init__(self, *arguments: Any, **settings: Any):
        super().__init__(*arguments, **settings)
        for parameter in self.params:
            kind = completed_kind(parameter)
            if kind is not None:
                parameter.type = PathText(kind)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if isinstance(parameter, click.Argument):  # click 8.5 has a record of each, and the usage line shows them.
                continue
            record = parameter.get_help_record(ctx)
            if record is not None:
                sections.setdefault(getattr(parameter, "section", OTHERS), []).append(record)
        others = sections.pop(OTHERS, [])
        for title, records in [*sections.items(), (OTHERS, others)]:
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


class CommandGroup(click.Group):
    """A group of SectionedCommands."""

    command_class = SectionedCommand
    group_class = type  # click's word for: groups inside are of this class too

    def __init__(self, *arguments: Any, **settings: Any):
        super().__init__(*arguments, **settings)
        self.loaders: dict[str, Callable[[], click.Command]] = {}

    def add_loaded(self, name: str, help: str, load: Callable[[], click.Command]) -> None:
        """Adds a command that `load` returns once it is called. Until then `help` is all that is known of it.

        A load may raise MissingDependencyError: a shell then completes none of the command's options.
        """
        self.add_command(click.Command(name, help=help, add_help_option=False))
        self.loaders[name] = load

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        if name in self.loaders:
            try:
                command = self.loaders[name]()
            except MissingDependencyError:
                if not ctx.resilient_parsing:  # else a shell asks
                    raise
        return name, command, rest


def completed_kind(parameter: click.Parameter) -> str | None:
    """Returns what a shell completes for a parameter whose type is a plain text: FILE, FOLDER, or None for no path."""
    if parameter.type is not click.STRING:
        return None
    if isinstance(parameter, click.Argument):
        return FILE if parameter.name in PATH_ARGUMENTS else None
    kinds = (parameter.metavar or "").partition("|")[0].partition(".")[0]
    return {"FILE": FILE, "DIR": FOLDER}.get(kinds)
