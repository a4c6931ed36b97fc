"""Where a command is to draw: refused before its work, not after it."""

from __future__ import annotations

import os
from pathlib import Path

from tensorwright.errors import InvalidOptionError, reason


def check_picture(name: str, option: str) -> Path:
    """The file that `option` names, an SVG picture that can be written. What is there stays as it is.

    Raises InvalidOptionError.
    """
    path = Path(os.path.expanduser(name))
    if path.suffix.lower() != ".svg":
        raise InvalidOptionError(f"{option} draws SVG, so the file's name must end in .svg, got {name!r}")
    if path.is_dir() or not path.parent.is_dir():
        raise InvalidOptionError(f"{option} must name a file in a folder that exists, got {name!r}")
    was_there = os.path.lexists(path)
    try:
        path.open("ab").close()  # only this says it for sure: root may write where os.access denies it, and the reverse
    except OSError as error:
        raise InvalidOptionError(
            f"{option} must name a file that can be written, got {name!r} ({reason(error)})"
        ) from error
    if not was_there:
        path.unlink()
    return path
