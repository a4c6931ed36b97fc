"""Declares the bodies of POST /v1/messages and /v1/messages/count_tokens, and says what they ask of a chat.

Documented in https://docs.claude.com/en/api/messages.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from tensorwright.runtime.api.chat_plan import ChatWish
from tensorwright.runtime.base import request_bounds as bounds
from tensorwright.runtime.base.parameter_checks import shown, weigh
from tensorwright.runtime.chat_formats.tools import read_tools
from tensorwright.runtime.serving.server.chat_request import ChatCompletionRequest, TemplateVariables
from tensorwright.runtime.serving.server.request_fields import (
    OTHER,
    TEXT,
    TEXT_OR_OTHER,
    DrawingFields,
    Ignorable,
    Ignored,
    JsonSchema,
    Name,
    Refused,
    ResponseFormat,
    Schema,
    StopText,
    StrictModel,
)

BlockType = Literal["text", "thinking", "redacted_thinking", "tool_use", "tool_result"]
BLOCK_TYPES = get_args(BlockType)
NEEDS: dict[str, tuple[str, ...]] = {
    "text": ("text",),
    "thinking": ("thinking",),
    "redacted_thinking": (),
    "tool_use": ("id", "name", "input"),
    "tool_result": ("tool_use_id",),
}
"""The fields that a block of each type must have."""
MAY: dict[str, tuple[str, ...]] = {
    "text": ("citations",),
    "thinking": ("signature",),
    "redacted_thinking": ("data",),
    "tool_use": (),
    "tool_result": ("content", "is_error"),
}
"""The fields that a block of each type may have besides."""


def _known_block(value: Any) -> Any:
    if isinstance(value, str) and value not in BLOCK_TYPES:
        words = "content blocks of type {kind} are not supported, only {known} are"
        raise PydanticCustomError("unsupported_block", words, {"kind": shown(value), "known": ", ".join(BLOCK_TYPES)})
    return value


def _short_input(value: Any) -> Any:
    if isinstance(value, dict) and not weigh(value, bounds.CALL_ARGUMENTS, characters=True):
        details = {"most": bounds.CALL_ARGUMENTS}
        raise PydanticCustomError("too_long", "an input must have at most {most} characters", details)
    return value


class TextBlock(StrictModel):
    """A text. cache_control: taken and not used, for every prefix is cached by itself. citations: likewise."""

    type: Annotated[Literal["text"], BeforeValidator(_known_block)]
    text: str
    cache_control: dict[str, Any] | None = None
    citations: list[Any] | None = None


TextBlocks = Annotated[list[TextBlock], Field(max_length=bounds.CONTENT_PARTS, fail_fast=True)]
Text = Annotated[Annotated[str, TEXT] | Annotated[TextBlocks, OTHER], TEXT_OR_OTHER]


class ContentBlock(StrictModel):
    """A block of a message.

    text: of a text. thinking: what an earlier answer thought. id, name, input: of an earlier call. tool_use_id,
    content: of a call's result. is_error: of a result; taken and not used, for its content tells the model.
    signature, data, citations, cache_control: taken and not used.
    """

    type: Annotated[BlockType, BeforeValidator(_known_block)]
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    id: Name | None = None
    name: Name | None = None
    input: Annotated[dict[str, Any], BeforeValidator(_short_input)] | None = None
    tool_use_id: Name | None = None
    content: Text | None = None
    is_error: bool | None = None
    citations: list[Any] | None = None
    cache_control: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _has_what_its_type_says(self) -> ContentBlock:
        given = {name for name in type(self).model_fields if getattr(self, name) is not None}
        missing = next((name for name in NEEDS[self.type] if name not in given), None)
        if missing is not None:
            raise ValueError(f"a block of type {self.type} must have {missing}")
        odd = sorted(given - {"type", "cache_control", *NEEDS[self.type], *MAY[self.type]})
        if odd:
            raise ValueError(f"a block of type {self.type} must come without {odd[0]}")
        return self


Blocks = Annotated[list[ContentBlock], Field(max_length=bounds.CONTENT_PARTS, fail_fast=True)]


class TurnMessage(StrictModel):
    """One turn of a conversation. Calls and thinking are the assistant's; results are the user's."""

    role: Literal["user", "assistant"]
    content: Annotated[Annotated[str, TEXT] | Annotated[Blocks, OTHER], TEXT_OR_OTHER]

    @model_validator(mode="after")
    def _fits_its_role(self) -> TurnMessage:
        theirs = ("tool_result",) if self.role == "assistant" else ("tool_use", "thinking", "redacted_thinking")
        for block in self.content if isinstance(self.content, list) else ():
            if block.type in theirs:
                raise ValueError(f"a block of type {block.type} must not come with the role {self.role}")
        return self

    def for_template(self) -> list[dict[str, Any]]:
        """Returns the messages that the turn comes to, in the form that LLM.chat takes: a result is one of its own, and
        what the user says beside results follows them."""
        if isinstance(self.content, str):
            return [{"role": self.role, "content": self.content}]
        texts = [block.text for block in self.content if block.text is not None]
        results = [
            {"role": "tool", "tool_call_id": block.tool_use_id, "content": text_of(block.content)}
            for block in self.content
            if block.type == "tool_result"
        ]
        if self.role == "user":
            return [*results, *([{"role": "user", "content": "\n".join(texts)}] if texts or not results else [])]
        message: dict[str, Any] = {"role": "assistant", "content": "\n".join(texts) if texts else None}
        if thoughts := [block.thinking for block in self.content if block.thinking]:
            message["reasoning_content"] = "\n".join(thoughts)
        if calls := [_call(block) for block in self.content if block.type == "tool_use"]:
            message["tool_calls"] = calls
        return [message]


def _call(block: ContentBlock) -> dict[str, Any]:
    arguments = json.dumps(block.input, ensure_ascii=False)
    return {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": arguments}}


def text_of(content: str | list[Any] | None) -> str:
    """Returns the text of a content. Line ends join its blocks, as in chat completions."""
    return content if isinstance(content, str) else "\n".join(block.text for block in content or ())


def _only_custom(value: Any) -> Any:
    if isinstance(value, str) and value != "custom":
        words = "tools of type {kind} are not supported, only those of the caller are (custom, or no type)"
        raise PydanticCustomError("unsupported_tool", words, {"kind": shown(value)})
    return value


class CallerTool(StrictModel):
    """A tool that the caller runs. input_schema: the JSON schema of its input, an object. strict: whether a grammar
    makes sure that the input fits it. cache_control: taken and not used."""

    type: Annotated[Literal["custom"], BeforeValidator(_only_custom)] | None = None
    name: Name
    description: str | None = None
    input_schema: Schema
    strict: bool | None = None
    cache_control: dict[str, Any] | None = None


class ToolPick(StrictModel):
    """How tools are called: as the model likes (auto), at least one (any), one by its name (tool), or none.
    disable_parallel_tool_use: true allows one call at most."""

    type: Literal["auto", "any", "tool", "none"]
    name: Name | None = None
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _has_a_name_if_it_says_so(self) -> ToolPick:
        if (self.type == "tool") != (self.name is not None):
            raise ValueError("name must come with the type tool, and only with it")
        return self

    def for_chat(self) -> Any:
        """Returns the choice in the form of chat completions."""
        if self.name is not None:
            return {"type": "function", "function": {"name": self.name}}
        return "required" if self.type == "any" else self.type


class Thinking(StrictModel):
    """Whether the model thinks: enabled, with at most budget_tokens of thinking; disabled; or adaptive, as it likes."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = Field(None, ge=1, lt=2**31)
    display: Annotated[Literal["summarized"] | None, Ignorable(None, "summarized")] = None

    @model_validator(mode="after")
    def _has_a_budget_if_it_is_enabled(self) -> Thinking:
        if (self.type == "enabled") != (self.budget_tokens is not None):
            raise ValueError("budget_tokens must come with the type enabled, and only with it")
        return self


class OutputFormat(StrictModel):
    type: Literal["json_schema"]
    schema_: Schema = Field(alias="schema")


class OutputConfig(StrictModel):
    """format: the schema of the text, which is enforced. effort: how much the model thinks."""

    format: OutputFormat | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None


class Metadata(StrictModel):
    """user_id: accepted and not used."""

    user_id: Name | None = None


class TurnFields(StrictModel):
    """The fields that make a prompt.

    system: a text, or blocks of text, before the conversation. messages: the conversation; the user has the last turn.
    chat_template_kwargs: as in chat completions.
    """

    system: Text | None = None
    messages: Annotated[list[TurnMessage], Field(min_length=1, max_length=bounds.MESSAGES, fail_fast=True)]
    tools: Annotated[list[CallerTool], Field(max_length=bounds.TOOLS, fail_fast=True)] | None = None
    tool_choice: ToolPick | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    chat_template_kwargs: TemplateVariables | None = None
    output_format: Refused = None
    mcp_servers: Refused = None
    container: Refused = None
    context_management: Refused = None
    cache_control: Annotated[dict[str, Any] | None, Field(description="Taken and not used.")] = None

    @model_validator(mode="after")
    def _the_user_has_the_last_turn(self) -> TurnFields:
        if self.messages[-1].role != "user":
            raise ValueError(
                "messages must end with the user's: to begin the answer on behalf of the model is not supported"
            )
        return self

    def for_template(self) -> list[dict[str, Any]]:
        """Returns the conversation in the form that LLM.chat takes."""
        system = [] if self.system is None else [{"role": "system", "content": text_of(self.system)}]
        return [*system, *(part for message in self.messages for part in message.for_template())]

    def wish(self) -> ChatWish:
        """Returns what the fields ask for, beside the messages. Raises InvalidRequestError."""
        tools = [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.input_schema,
                    "strict": tool.strict,
                },
            }
            for tool in self.tools or ()
        ]
        pick, thinking, config = self.tool_choice, self.thinking, self.output_config
        switch = {"enabled": True, "disabled": False}
        return ChatWish(
            read_tools(
                tools,
                None if pick is None else pick.for_chat(),
                None if pick is None else not pick.disable_parallel_tool_use,
            ),
            variables=self.chat_template_kwargs or {},
            effort=None if config is None else config.effort,
            budget=None if thinking is None else thinking.budget_tokens,
            thinks=None if thinking is None else switch.get(thinking.type),
        )


class MessagesRequest(TurnFields, DrawingFields):
    """The body of a message.

    max_tokens: the most tokens of the answer, its thinking included. stop_sequences: texts that end the answer.
    service_tier: taken where it asks for nothing.
    """

    max_tokens: int = Field(ge=1, lt=2**31)
    stop_sequences: Annotated[list[StopText], Field(max_length=bounds.STOP_STRINGS, fail_fast=True)] | None = None
    stream: bool | None = None
    metadata: Metadata | None = None
    service_tier: Annotated[Literal["auto", "standard_only"] | None, Ignorable(None, "auto", "standard_only")] = None
    inference_geo: Ignored = None

    @model_validator(mode="after")
    def _thinks_within_its_length(self) -> MessagesRequest:
        budget = None if self.thinking is None else self.thinking.budget_tokens
        if budget is not None and budget >= self.max_tokens:
            raise ValueError(f"thinking.budget_tokens must be less than max_tokens, {self.max_tokens}, got {budget}")
        return self

    def for_chat(self) -> ChatCompletionRequest:
        """Returns the fields of sampling in the form of chat completions."""
        form = None if self.output_config is None else self.output_config.format
        schema = None if form is None else JsonSchema.model_construct(name="output", schema_=form.schema_)
        return ChatCompletionRequest.model_construct(
            **{name: getattr(self, name) for name in DrawingFields.model_fields},
            max_completion_tokens=self.max_tokens,
            stop=self.stop_sequences or None,
            response_format=None
            if schema is None
            else ResponseFormat.model_construct(type="json_schema", json_schema=schema),
        )


class CountRequest(TurnFields):
    """The body of a count of tokens. model: the model's name; it may be left out where the server has one model."""

    model: Name | None = None
