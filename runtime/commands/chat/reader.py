"""Reads what a user says: lines of a terminal, which can be edited and recalled, or of a file or pipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from tensorwright.errors import InvalidRequestError, reason

PROMPT, MORE = ">>> ", "... "
QUOTES = '"""'
"""What begins and ends a text of several lines."""
KEPT_LINES = 1000
"""The lines of the history file."""


class Reader(Protocol):
    def read(self) -> str | None:
        """Returns the next text, without the newline at its end; None at the end of the input."""


class TerminalReader:
    """Reads from a terminal. Arrow keys recall earlier lines, also those of earlier conversations."""

    def __init__(self, history: Path | None):
        """history: the file of earlier lines; None keeps none."""
        import readline  # it changes how input() reads from here on

        self._readline = readline
        self._history = history
        readline.set_history_length(KEPT_LINES)
        readline.set_auto_history(False)
        if history is not None:
            with suppress(OSError):  # there is none yet, or none that can be read
                readline.read_history_file(history)

    def read(self) -> str | None:
        text = read_text(self._line)
        if text is not None and text.strip():
            self._readline.add_history(text.replace("\n", " "))
            self._keep()
        return text

    def _line(self, prompt: str) -> str | None:
        try:
            return input(prompt)
        except EOFError:
            print()
            return None

    def _keep(self) -> None:
        if self._history is None:
            return
        try:
            self._history.parent.mkdir(parents=True, exist_ok=True)
            self._history.touch(mode=0o600)
            self._readline.write_history_file(self._history)
        except OSError as error:  # the conversation goes on without a history
            print(f"the history is not kept: {reason(error)}", file=sys.stderr)
            self._history = None


class StreamReader:
    """Reads the lines of standard input where it is no terminal."""

    def read(self) -> str | None:
        return read_text(self._line)

    def _line(self, prompt: str) -> str | None:
        try:
            line = sys.stdin.readline()
        except UnicodeDecodeError as error:
            raise InvalidRequestError(f"the input must be UTF-8 text: {error}") from error
        return line.removesuffix("\n") if line else None


def read_text(next_line: Callable[[str], str | None]) -> str | None:
    """Returns a line, or the lines between two times three quotes.

    next_line: returns the next line for a prompt, or None at the end. A text that the end cuts off counts as whole.
    """
    line = next_line(PROMPT)
    if line is None or not line.lstrip().startswith(QUOTES):
        return line
    lines = [line.lstrip().removeprefix(QUOTES)]
    while QUOTES not in lines[-1]:
        line = next_line(MORE)
        if line is None:
            break
        lines.append(line)
    lines[-1] = lines[-1].split(QUOTES)[0]
    return "\n".join(lines).strip("\n")


def open_reader(keep_history: bool) -> Reader:
    if not sys.stdin.isatty():
        return StreamReader()
    return TerminalReader(history_file() if keep_history else None)


def history_file() -> Path:
    """Where earlier lines are kept (XDG Base Directory Specification)."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "tensorwright" / "chat_history"
