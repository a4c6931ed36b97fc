"""Declares the items of a Responses API conversation, and makes messages of them as LLM.chat takes them.

An item is a message, a call of a function, its result, or what the model thought. In a chat the thinking, the text and
the calls of one answer are one message.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from tensorwright.runtime.base import request_bounds as bounds
from tensorwright.runtime.base.parameter_checks import shown
from tensorwright.runtime.serving.server.request_fields import (
    OTHER,
    TEXT,
    TEXT_OR_OTHER,
    CallArguments,
    Name,
    StrictModel,
)

ItemType = Literal["message", "function_call", "function_call_output", "reasoning"]
ITEM_TYPES = get_args(ItemType)


def _refuse_media(value: Any) -> Any:
    for part in value[: bounds.CONTENT_PARTS] if isinstance(value, list) else []:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in (None, *PART_TYPES):
            words = "content parts of type {kind} are not supported, only text is"
            raise PydanticCustomError("unsupported_part", words, {"kind": shown(kind)})
    return value


class ItemPart(StrictModel):
    """A part of an item: of a message's content, of a result, or of what the model thought. annotations, logprobs: of
    an earlier answer; taken and not used."""

    type: Literal["input_text", "output_text", "text", "reasoning_text", "summary_text"]
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


PART_TYPES = get_args(ItemPart.model_fields["type"].annotation)
PartList = Annotated[list[ItemPart], Field(max_length=bounds.CONTENT_PARTS, fail_fast=True)]
Parts = Annotated[Annotated[str, TEXT] | Annotated[PartList, OTHER], TEXT_OR_OTHER, BeforeValidator(_refuse_media)]


def _known_type(value: Any) -> Any:
    if isinstance(value, str) and value not in ITEM_TYPES:
        hint = ": send the item itself" if value == "item_reference" else ""
        words = "items of type {kind} are not supported, only {known} are{hint}"
        details = {"kind": shown(value), "known": ", ".join(ITEM_TYPES), "hint": hint}
        raise PydanticCustomError("unsupported_item", words, details)
    return value


class InputItem(StrictModel):
    """One item of the input.

    role, content: of a message. call_id, name, arguments: of a call; arguments are JSON text. call_id, output: of a
    call's result. summary, content: of what the model thought; content comes first if there is both. id, status, phase:
    as earlier answers have them; taken and not used. encrypted_content: likewise; this server's items carry their text
    in the open.
    """

    type: Annotated[ItemType, BeforeValidator(_known_type)] = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: Parts | None = None
    call_id: Name | None = None
    name: Name | None = None
    arguments: CallArguments | None = None
    output: Parts | None = None
    summary: PartList | None = None
    encrypted_content: str | None = None
    id: Name | None = None
    status: Name | None = None
    phase: Name | None = None

    @model_validator(mode="after")
    def _has_what_its_type_says(self) -> InputItem:
        needs = {
            "message": ("role", "content"),
            "function_call": ("call_id", "name", "arguments"),
            "function_call_output": ("call_id", "output"),
            "reasoning": (),
        }[self.type]
        missing = next((name for name in needs if getattr(self, name) is None), None)
        if missing is not None:
            raise ValueError(f"an item of type {self.type} must have {missing}")
        allowed = (*needs, *(("content", "summary", "encrypted_content") if self.type == "reasoning" else ()))
        odd = next((name for name in _OF_TYPES if name not in allowed and getattr(self, name) is not None), None)
        if odd is not None:
            raise ValueError(f"an item of type {self.type} must come without {odd}")
        return self


_OF_TYPES = ("role", "content", "call_id", "name", "arguments", "output", "summary", "encrypted_content")
Items = Annotated[list[InputItem], Field(min_length=1, max_length=bounds.MESSAGES, fail_fast=True)]


def messages_of(items: Iterable[InputItem]) -> list[dict[str, Any]]:
    """Returns the messages of a conversation's items, in the form that LLM.chat takes."""
    messages: list[dict[str, Any]] = []
    answer: dict[str, Any] | None = None  # the assistant's message that further items may still belong to
    for item in items:
        if item.type == "function_call_output":
            messages.append({"role": "tool", "tool_call_id": item.call_id, "content": _text(item.output)})
            answer = None
        elif item.type == "message" and item.role != "assistant":
            messages.append({"role": item.role, "content": _text(item.content)})
            answer = None
        else:
            key = {"message": "content", "reasoning": "reasoning_content", "function_call": "tool_calls"}[item.type]
            if answer is None or _is_past(answer, key):
                answer = {"role": "assistant", "content": None}
                messages.append(answer)
            _add(answer, item)
    return [message for message in messages if message != {"role": "assistant", "content": None}]


def _is_past(answer: dict[str, Any], key: str) -> bool:
    """Whether an answer has gone on to something that `key` comes before. Texts in a row are one answer's too."""
    order = ("reasoning_content", "content", "tool_calls")
    return any(answer.get(later) is not None for later in order[order.index(key) + 1 :])


def _add(answer: dict[str, Any], item: InputItem) -> None:
    if item.type == "function_call":
        function = {"name": item.name, "arguments": item.arguments}
        call = {"id": item.call_id, "type": "function", "function": function}
        answer.setdefault("tool_calls", []).append(call)
    elif item.type == "message":
        answer["content"] = _with_line_end(answer["content"], _text(item.content))
    else:
        text = _text(item.content if item.content is not None else item.summary)
        if text:
            answer["reasoning_content"] = _with_line_end(answer.get("reasoning_content"), text)


def _with_line_end(before: str | None, text: str) -> str:
    return text if before is None else f"{before}\n{text}"


def _text(parts: str | list[ItemPart] | None) -> str:
    """Returns the text of a content. Line ends join its parts, as in chat completions."""
    return parts if isinstance(parts, str) else "\n".join(part.text for part in parts or ())
