"""A file that appears whole or not at all: it is written beside its place and renamed."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from tensorwright.errors import InvalidOptionError, reason


class NewFile:
    """A file that will be written. A link is followed, and the file that it names is replaced."""

    def __init__(self, path: str | Path, option: str):
        """Takes a name beside the place. option: what the path was given as. Raises InvalidOptionError if nothing can
        be written there, or if there is something that is no file, such as a folder or a pipe."""
        self.path = Path(os.path.expanduser(path))
        self._place = Path(os.path.realpath(self.path))
        try:
            if self._place.exists() and not self._place.is_file():
                raise InvalidOptionError(f"{option}: {self.path} cannot be written (it is no regular file)")
            self._part = self._place.with_name(f".{self._place.name}.{secrets.token_hex(4)}.part")
            self._part.touch(exist_ok=False)
        except OSError as error:
            raise InvalidOptionError(f"{option}: {self.path} cannot be written ({reason(error)})") from error

    def discard(self) -> None:
        """Removes what was begun. After `write` there is nothing to remove."""
        with suppress(OSError):
            self._part.unlink(missing_ok=True)

    @contextmanager
    def write(self) -> Iterator[TextIO]:
        """Gives the file to write, as UTF-8 text, and puts it into its place at the end of the block. If the block
        fails, there is nothing new there. Raises OSError."""
        try:
            with self._part.open("w", encoding="utf-8") as file:
                yield file
            os.replace(self._part, self._place)
        except BaseException:
            self.discard()
            raise
