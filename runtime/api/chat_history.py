"""Puts the messages of a conversation into the form that chat templates take, where OpenAI's API has another one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensorwright.errors import InvalidRequestError
from tensorwright.json_text import read_json
from tensorwright.runtime.base.parameter_checks import shown

THOUGHTS = ("reasoning_content", "reasoning")
"""The entries in which clients send the thinking of an earlier answer back, the first one that is there."""


class Arguments(dict[str, Any]):
    """The arguments of an earlier call. Most templates write them with tojson, some join them to a text: so they are a
    dict that turns into its JSON where a text is wanted."""

    def __init__(self, parsed: dict[str, Any], text: str):
        super().__init__(parsed)
        self._text = text

    def __str__(self) -> str:
        return self._text

    def __add__(self, other: object) -> str:
        return self._text + str(other)

    def __radd__(self, other: object) -> str:
        return str(other) + self._text


def for_template(messages: Sequence[Mapping[str, Any]], thought_key: str) -> list[dict[str, Any]]:
    """Returns the messages with parsed arguments of calls, with the tools' names beside their results, with "" for a
    content of None, and with earlier thinking under the key that the template reads. A message without any of these is
    returned as it is. Raises InvalidRequestError for calls that are malformed."""
    names: dict[str, str] = {}
    return [_one(f"messages[{number}]", message, names, thought_key) for number, message in enumerate(messages)]


def with_written_calls(
    messages: Sequence[Mapping[str, Any]], write: Callable[[Sequence[tuple[str, str]]], str]
) -> list[dict[str, Any]]:
    """Returns the messages with their calls as a part of the content. write: writes pairs of a name and of arguments.
    Raises InvalidRequestError for calls that are malformed."""
    result = []
    for number, message in enumerate(messages):
        changed = dict(message)
        if calls := changed.pop("tool_calls", None):
            parsed = _calls(f"messages[{number}]", calls, {})
            pairs = [(call["function"]["name"], str(call["function"]["arguments"])) for call in parsed]
            changed["content"] = f"{changed.get('content') or ''}{write(pairs)}"
        result.append(changed)
    return result


def _one(where: str, message: Mapping[str, Any], names: dict[str, str], thought_key: str) -> dict[str, Any]:
    changed = dict(message)
    if "content" in changed and changed["content"] is None:
        changed["content"] = ""
    calls = changed.pop("tool_calls", None)
    if calls:
        changed["tool_calls"] = _calls(where, calls, names)
        changed.setdefault("content", "")
    if changed.get("role") == "tool" and "name" not in changed and changed.get("tool_call_id") in names:
        changed["name"] = names[changed["tool_call_id"]]
    thought = next((changed[key] for key in THOUGHTS if changed.get(key)), None)
    for key in THOUGHTS:
        changed.pop(key, None)
    if thought is not None and calls and changed["content"] and thought_key not in THOUGHTS:
        thought = f"{thought}\n{changed['content']}"  # the template takes only one of both beside calls
        changed["content"] = ""
    if thought is not None:
        changed[thought_key] = thought
    return changed


def _calls(where: str, calls: Any, names: dict[str, str]) -> list[dict[str, Any]]:
    if not isinstance(calls, (list, tuple)):
        raise InvalidRequestError(f"{where}: tool_calls must be a list, got {shown(calls)}")
    result = []
    for number, call in enumerate(calls):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise InvalidRequestError(
                f"{where}: tool_calls[{number}] must have a function with a name, got {shown(call)}"
            )
        if isinstance(call.get("id"), str):
            names[call["id"]] = function["name"]
        arguments = _arguments(f"{where}: tool_calls[{number}]", function.get("arguments"))
        result.append({"type": "function", **call, "function": {**function, "arguments": arguments}})
    return result


def _arguments(where: str, arguments: Any) -> dict[str, Any] | str:
    """Returns the arguments, which are a dict, or the JSON text of one; none at all means an empty one. A text that is
    no JSON is returned as it is: a model wrote it, and its client tells it so."""
    if arguments is None or arguments == "":
        arguments = "{}"
    if isinstance(arguments, Mapping):
        return Arguments(dict(arguments), json.dumps(arguments, ensure_ascii=False))
    if not isinstance(arguments, str):
        raise InvalidRequestError(f"{where}: arguments must be the JSON text of an object, got {shown(arguments)}")
    try:
        parsed = read_json(arguments)
    except ValueError:
        return arguments
    return Arguments(parsed, arguments) if isinstance(parsed, dict) else arguments
