"""Checks the name of a file into which a command will draw, before the command begins its work."""

from __future__ import annotations

import os
from pathlib import Path

from tensorwright.errors import InvalidOptionError, reason


def check_picture(name: str, option: str) -> Path:
    """Returns the path of the SVG file that `option` names. An existing file stays as it is.

    Raises InvalidOptionError unless the file can be written.
    """
    path = Path(os.path.expanduser(name))
    if path.suffix.lower() != ".svg":
        raise InvalidOptionError(f"{option} draws SVG, so the file's name must end in .svg, got {name!r}")
    if path.is_dir() or not path.parent.is_dir():
        raise InvalidOptionError(f"{option} must name a file in a folder that exists, got {name!r}")
    was_there = os.path.lexists(path)
    try:
        path.open("ab").close()  # os.access can be wrong in both directions, for example for root, so open the file
    except OSError as error:
        raise InvalidOptionError(
            f"{option} must name a file that can be written, got {name!r} ({reason(error)})"
        ) from error
    if not was_there:
        path.unlink()
    return path
