"""Refuses bad places before any work: values that are no paths, and places that lie in one another."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tensorwright.errors import BuildError, InvalidOptionError, reason


def check_places(model: Any, out: Any, dump: Any = None) -> None:
    """Raises InvalidOptionError unless all are paths, `out` and `model` are apart, and `dump` is outside `out`."""
    _check_path("model", model, "a checkpoint directory, a GGUF file or a hub name like org/name")
    _check_path("out", out, "the directory that the engine becomes")
    if os.path.isdir(os.path.expanduser(model)):
        if _within(out, model):
            raise InvalidOptionError(f"out must lie outside {model}, which is read, not at {out}; choose another place")
        if _within(model, out):
            raise InvalidOptionError(f"out must not hold {model}, which is read, as {out} does; choose another place")
    if dump is None:
        return
    _check_path("dump", dump, "a directory")
    if _within(dump, out):  # `out` stays empty until the whole engine is put there
        raise InvalidOptionError(f"dump must lie outside out ({out}), not at {dump}; choose another folder")


def make_dump_folder(dump: Path) -> None:
    """Makes the folder, and raises BuildError unless it is writable, before the minutes that a build may take."""
    try:
        dump.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BuildError(f"dump {dump}: cannot be made ({reason(error)}); choose another folder") from error
    if not os.access(dump, os.W_OK):
        raise BuildError(f"dump {dump}: cannot be written to; choose another folder")


def _check_path(name: str, value: Any, what: str) -> None:
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(text, str) or not text.strip() or "\0" in text:
        raise InvalidOptionError(f"{name} must be the path of {what}, not {value!r}")


def _within(inner: Any, outer: Any) -> bool:
    """Returns whether `inner` is `outer` or lies in it, with symbolic links followed."""
    real = [Path(os.path.realpath(os.path.expanduser(place))) for place in (inner, outer)]
    return real[0].is_relative_to(real[1])
