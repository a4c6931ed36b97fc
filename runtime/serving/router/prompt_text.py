"""Reads of a request's body what a router must know: the text of its prompt, and whether a prefill helps.

The router knows no tokenizer. It compares texts, and with them everything that an engine makes tokens of.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

from tensorwright.runtime.routing.prefix_choice import pieces_of
from tensorwright.runtime.serving.server.json_shape import check_shape


@dataclass(frozen=True)
class PromptText:
    """The part of a body that is computed before the first token. keys: of its pieces. length: in bytes. helps: whether
    an engine can use a prefix that another one computed. after: the id of the stored response that the prompt goes on
    from; None without one."""

    keys: tuple[bytes, ...]
    length: int
    helps: bool
    after: str | None = None


NOTHING = PromptText((), 0, False)
PROMPTS = ("prompt", "messages", "input")
"""The fields that hold a prompt, one of them in each API."""
HEADS = ("model", "chat_template_kwargs", "tools", "system", "instructions")
"""The fields that come before it in the text that an engine computes."""


def read_prompt(raw: bytes) -> PromptText:
    """Returns what is known of a body. Of a body that an engine will refuse nothing is known. Raises
    InvalidRequestError for a body that is too large a JSON text to be read."""
    check_shape(raw)
    try:
        body = from_json(raw)
    except ValueError:
        return NOTHING
    if not isinstance(body, dict):
        return NOTHING
    prompt = next((body[name] for name in PROMPTS if body.get(name) is not None), None)
    if prompt is None:
        return NOTHING
    head = [body.get(name) for name in HEADS]
    text = json.dumps(head).encode() + (prompt.encode() if isinstance(prompt, str) else json.dumps(prompt).encode())
    stored = body.get("previous_response_id")
    after = stored if isinstance(stored, str) else None
    return PromptText(tuple(pieces_of(text)), len(text), not _scores(body) and after is None, after)


def _scores(body: dict[str, Any]) -> bool:
    """Whether the logprobs of the prompt are asked for, which an engine computes without any prefix."""
    echoed = body.get("echo") and body.get("logprobs") is not None
    return bool(echoed) or body.get("prompt_logprobs") is not None
