"""Prints an answer in the terminal as it comes: what the model thinks is dim, and is no part of the answer."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable

import click

from tensorwright.runtime.chat_formats.events import Event, ReasoningDelta, TextDelta

_PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {
    code: 0x2421 if code == 127 else 0xFFFD for code in range(127, 160)
}


def without_controls(text: str) -> str:
    """Returns a text with a picture in place of each control character: a model, or whoever wrote a file, could else
    change the clipboard, the title and what was printed before, and make the terminal type."""
    return text.translate(_PICTURES)


class Printer:
    """The printer of one answer. answer: its text so far."""

    def __init__(self, thoughts: bool):
        """thoughts: whether what the model thinks is printed."""
        self.answer = ""
        self._thoughts = thoughts
        self._dim = sys.stdout.isatty()
        self._clean: Callable[[str], str] = without_controls if self._dim else str  # a pipe gets the text as it is
        self._thinking = False

    def show(self, events: Iterable[Event]) -> None:
        """Prints the text of these events."""
        for event in events:
            if isinstance(event, ReasoningDelta) and self._thoughts:
                self._thinking = True
                click.secho(self._clean(event.text), nl=False, dim=self._dim)
            elif isinstance(event, TextDelta):
                if self._thinking:  # the answer begins on a line of its own
                    click.echo()
                self._thinking = False
                self.answer += event.text
                click.echo(self._clean(event.text), nl=False)
