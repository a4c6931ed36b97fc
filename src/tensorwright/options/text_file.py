"""Reads the texts that a user gives: to measure accuracy on, and to calibrate with."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import xxhash

from tensorwright.errors import InvalidOptionError, reason

MAX_BYTES = 64 << 20
"""The largest file of text that is read. A build takes no more than the beginning of one."""


@dataclass(frozen=True)
class NamedText:
    """A text. name: as records call it."""

    name: str
    content: str

    @property
    def xxh3_128(self) -> str:
        """The hash of the text in UTF-8."""
        return xxhash.xxh3_128_hexdigest(self.content.encode())

    @property
    def as_recorded(self) -> str:
        """What engines say of a text that a calibration ran, which they do not hold."""
        return f"xxh3_128 {self.xxh3_128}"


def read_text_file(option: str, place: str) -> NamedText:
    """Returns a user's text. option: begins the messages. Raises InvalidOptionError unless the file holds UTF-8 text of
    at most MAX_BYTES."""
    path = Path(os.path.expanduser(place))
    if not path.is_file():
        raise InvalidOptionError(f"{option}: {place} is no file; give a file of text")
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InvalidOptionError(f"{option}: {place} cannot be read ({reason(error)})") from error
    if len(data) > MAX_BYTES:
        raise InvalidOptionError(f"{option}: {place} is larger than {MAX_BYTES} bytes; give its beginning")
    try:
        content = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidOptionError(f"{option}: {place} must be UTF-8 text ({error}); convert it") from error
    if not content.strip():
        raise InvalidOptionError(f"{option}: {place} holds no text; give another file")
    return NamedText(path.name, content)
