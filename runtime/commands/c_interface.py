"""Carries out `tensorwright c-interface`: prints where the C interface is installed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import click

from tensorwright.runtime.api import c_library

PLACES: dict[str, Callable[[], str]] = {
    "cflags": c_library.compile_flags,
    "libs": c_library.link_flags,
    "cmake_dir": c_library.get_cmake_dir,
    "pkgconfig_dir": c_library.get_pkgconfig_dir,
}
"""What the options of the command print."""


def print_places(asked: Mapping[str, bool]) -> None:
    """Prints what was asked for on one line, as a shell takes it. asked: the options by name. Raises UsageError if none
    is set."""
    chosen = [place for name, place in PLACES.items() if asked[name]]
    if not chosen:
        options = ", ".join("--" + name.replace("_", "-") for name in PLACES)
        raise click.UsageError(f"say what to print: {options}")
    click.echo(" ".join(place() for place in chosen))
