"""Puts answers of all APIs into one form, in which those of two servers are compared: what ids, times and use of caches
change is left out."""

from __future__ import annotations

import json
from typing import Any

VARY = ("id", "created", "created_at", "completed_at", "usage", "system_fingerprint", "call_id", "response_id",
        "item_id", "tool_call_id", "signature", "previous_response_id", "model")  # fmt: skip
"""Fields that differ between equal requests."""


def bare(value: Any) -> Any:
    """Returns JSON without what varies."""
    if isinstance(value, dict):
        return {name: bare(part) for name, part in value.items() if name not in VARY}
    return [bare(part) for part in value] if isinstance(value, list) else value


class Answer:
    """Collects one answer, whole or in pieces.

    error: the error of a stream's last event, None without one. done: whether the stream said its end. response_id: of
    the Responses API.
    """

    def __init__(self, path: str):
        self._path = path
        self._parts: dict[str, Any] = {}
        self.pieces = 0
        self.error: dict[str, Any] | None = None
        self.done = False
        self.response_id: str | None = None

    def whole(self, body: dict[str, Any]) -> None:
        self.done = True
        self.response_id = body.get("id")
        self._parts = bare(body)

    def piece(self, event: str) -> None:
        """Takes the data of one event of a stream."""
        if event == "[DONE]":
            self.done = True
            return
        data = json.loads(event)
        self.pieces += 1
        error = data.get("error") or (data.get("response") or {}).get("error")
        if data.get("type") == "error":
            error = error or data
        if error is not None:
            self.error = error
        elif self._path == "/v1/responses":
            self._response(data)
        elif self._path == "/v1/messages":
            self._message(data)
        else:
            for choice in data["choices"]:
                _join(self._parts.setdefault(f"choice {choice['index']}", {}), bare(choice))

    def _response(self, data: dict[str, Any]) -> None:
        if data["type"] in ("response.completed", "response.incomplete"):
            self.whole(data["response"])
        elif data["type"] == "response.created":
            self.response_id = data["response"]["id"]

    def _message(self, data: dict[str, Any]) -> None:
        kind = data["type"]
        if kind == "message_stop":
            self.done = True
        elif kind == "message_delta":
            self._parts["end"] = bare(data["delta"])
        elif kind in ("content_block_start", "content_block_delta"):
            block = self._parts.setdefault(f"block {data['index']}", {})
            _join(block, bare(data.get("delta") or data["content_block"]))

    @property
    def bits(self) -> Any:
        """What must be equal."""
        return self._parts


def _join(so_far: dict[str, Any], piece: dict[str, Any]) -> None:
    """Adds a piece: texts and lists are put together, other values are replaced unless they are null."""
    for name, value in piece.items():
        if name in ("index", "type", "role"):
            continue
        if name == "tool_calls" and value:
            calls = so_far.setdefault("tool_calls", {})
            for call in value:
                _join(calls.setdefault(str(call["index"]), {}), call)
        elif isinstance(value, dict):
            if not isinstance(so_far.get(name), dict):
                so_far[name] = {}
            _join(so_far[name], value)
        elif name != "finish_reason" and type(value) in (str, list) and type(value) is type(so_far.get(name)):
            so_far[name] += value
        elif value is not None or name not in so_far:
            so_far[name] = value
