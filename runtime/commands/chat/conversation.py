"""Holds a conversation: its messages, what of them is sent, and the file it is saved in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tensorwright.errors import InvalidRequestError, reason
from tensorwright.json_text import read_json
from tensorwright.new_file import NewFile

SYSTEM, USER, ASSISTANT = "system", "user", "assistant"
MOST_BYTES = 64 << 20
"""The largest file that is read as a conversation."""

Message = dict[str, str]


class Conversation:
    """Messages of a user and an assistant in turn, behind what the system says.

    forgotten: how many of the first messages are sent no more, because the context has no room for them. They stay in
    the conversation, and are saved.
    """

    def __init__(self, system: str | None = None):
        self.system = system
        self.messages: list[Message] = []
        self.forgotten = 0

    def ask(self, text: str) -> None:
        self.messages.append({"role": USER, "content": text})

    def answer(self, text: str) -> None:
        self.messages.append({"role": ASSISTANT, "content": text})

    def to_send(self) -> list[Message]:
        """Returns the messages of the next prompt."""
        before = [] if self.system is None else [{"role": SYSTEM, "content": self.system}]
        return [*before, *self.messages[self.forgotten :]]

    def forget_oldest(self) -> bool:
        """Sends the oldest questions and their answers no more: an eighth of what is sent, so that few prompts are
        tried however long a conversation was loaded. Returns False if only the last question is left."""
        sent = len(self.messages) - self.forgotten
        if sent <= 2:
            return False
        self.forgotten += max(2, sent // 16 * 2)
        return True

    def take_back(self) -> str | None:
        """Removes the last question, and its answer if there is one. Returns the question; None if there is none."""
        if not self.messages:
            return None
        if self.messages[-1]["role"] == ASSISTANT:
            self.messages.pop()
        question = self.messages.pop()["content"]
        self.forgotten = min(self.forgotten, len(self.messages))
        return question

    def clear(self) -> None:
        self.messages, self.forgotten = [], 0

    def save(self, path: Path) -> None:
        """Writes the conversation as JSON: {"messages": [{"role": ..., "content": ...}, ...]}, as the API takes it.

        An older file is replaced when the new one is whole. Raises InvalidOptionError and OSError.
        """
        before = [] if self.system is None else [{"role": SYSTEM, "content": self.system}]
        text = json.dumps({"messages": [*before, *self.messages]}, ensure_ascii=False, indent=2)
        with NewFile(path, "/save").write() as file:
            file.write(text + "\n")

    @classmethod
    def load(cls, path: Path) -> Conversation:
        """Reads what `save` wrote. Raises InvalidRequestError that names the file and the fault."""
        try:
            if path.stat().st_size > MOST_BYTES:
                raise InvalidRequestError(f"{path} is larger than {MOST_BYTES} bytes: no conversation of `chat`")
            data = read_json(path.read_bytes())
        except (OSError, ValueError) as error:
            if isinstance(error, InvalidRequestError):
                raise
            raise InvalidRequestError(f"{path} cannot be read as a conversation ({reason(error)})") from error
        messages = data.get("messages") if isinstance(data, dict) else None
        if not isinstance(messages, list):
            raise InvalidRequestError(f'{path} is no conversation: it needs a list "messages"')
        found = cls()
        for number, message in enumerate(messages):
            found._take(message, f"{path}: messages[{number}]", first=number == 0)
        if len(found.messages) % 2:
            raise InvalidRequestError(f"{path}: the last message must be the assistant's")
        return found

    def _take(self, message: Any, where: str, first: bool) -> None:
        if not isinstance(message, dict) or not all(isinstance(message.get(key), str) for key in ("role", "content")):
            raise InvalidRequestError(f'{where} must have a "role" and a "content" that are texts')
        role, content = message["role"], message["content"]
        if role == SYSTEM and first:
            self.system = content
            return
        wanted = ASSISTANT if len(self.messages) % 2 else USER
        if role != wanted:
            raise InvalidRequestError(f"{where} must be of the {wanted}, not of {role!r:.40}")
        self.messages.append({"role": role, "content": content})
