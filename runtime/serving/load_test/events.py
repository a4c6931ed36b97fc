"""Reads server-sent events from a stream of bytes that is cut anywhere, and the chunks of completions in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tensorwright.json_text import read_json


class BadAnswer(Exception):
    """The answer is no stream of completions. It is counted as an error of its request."""


class EventParser:
    """Takes bytes as they come, and returns the data of complete events."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[str] = []

    def feed(self, received: bytes) -> list[str]:
        *lines, self._rest = (self._rest + received).split(b"\n")
        events = []
        for line in lines:
            text = line.rstrip(b"\r").decode("utf-8", errors="replace")
            if text.startswith("data:"):
                self._data.append(text[5:].removeprefix(" "))
            elif not text and self._data:
                events.append("\n".join(self._data))
                self._data = []
        return events


@dataclass(frozen=True)
class Chunk:
    """One event of a completion.

    has_text: whether the event has text. usage: the number of tokens that the server has counted so far, if it says so.
    error: the message of an error event. done: whether the event is the last.
    """

    has_text: bool = False
    usage: int | None = None
    error: str | None = None
    done: bool = False


def read_chunk(data: str) -> Chunk:
    """Reads the data of one event. Raises BadAnswer for data that no completions server sends."""
    if data.strip() == "[DONE]":
        return Chunk(done=True)
    try:
        event: Any = read_json(data)
    except ValueError:
        raise BadAnswer(f"an event that is no JSON: {data[:100]!r}") from None
    if not isinstance(event, dict) or not ("choices" in event or "error" in event):
        raise BadAnswer(f"an event without choices: {data[:100]!r}")
    if event.get("error") is not None:
        return Chunk(error=error_message(event))
    try:
        usage = (event.get("usage") or {}).get("completion_tokens")
        return Chunk(any(choice.get("text") for choice in event["choices"]), usage)
    except (AttributeError, TypeError):
        raise BadAnswer(f"an event of another form: {data[:100]!r}") from None


def error_message(body: Any) -> str:
    """Returns the message of OpenAI's {"error": {"message": ...}}, or of any other body."""
    error = body.get("error", body) if isinstance(body, dict) else body
    return str(error.get("message", error) if isinstance(error, dict) else error)
