"""The body of POST /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from tensorwright.runtime.server.request_fields import MOST_LOGPROBS, Refused, SamplingFields, StrictModel


class TextPart(StrictModel):
    type: Literal["text"]
    text: str


def _refuse_media(value: Any) -> Any:
    for part in value if isinstance(value, list) else []:
        kind = part.get("type", "text") if isinstance(part, dict) else "text"
        if kind != "text":
            raise PydanticCustomError(
                "unsupported_part", "content parts of type {kind} are not supported, only text is", {"kind": repr(kind)}
            )
    return value


Content = Annotated[
    Annotated[str, Tag("text")] | Annotated[list[TextPart], Tag("parts")],
    Discriminator(lambda value: "parts" if isinstance(value, list) else "text"),
    BeforeValidator(_refuse_media),
]


class Message(StrictModel):
    """One turn. Text parts are joined by line ends."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Content
    name: str | None = None
    tool_calls: Refused = None
    tool_call_id: Refused = None
    function_call: Refused = None
    audio: Refused = None
    refusal: Refused = None
    annotations: Refused = None

    def for_template(self) -> dict[str, Any]:
        """As chat templates know messages."""
        content = self.content
        text = content if isinstance(content, str) else "\n".join(part.text for part in content)
        return {"role": self.role, "content": text, **({} if self.name is None else {"name": self.name})}


class ChatFields(StrictModel):
    """What makes a prompt of messages. chat_template_kwargs: more variables for the model's chat template."""

    messages: list[Message] = Field(min_length=1)
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] | None = None


class ChatCompletionRequest(SamplingFields, ChatFields):
    """max_tokens is the old name of max_completion_tokens; without either, the answer is as long as there is room."""

    max_tokens: int | None = Field(None, ge=1, lt=2**31)
    max_completion_tokens: int | None = Field(None, ge=1, lt=2**31)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MOST_LOGPROBS)
    modalities: list[Literal["text"]] | None = None
    service_tier: Literal["auto", "default"] | None = None
    store: Literal[False] | None = None
    tool_choice: Literal["none"] | None = None
    tools: Refused = None
    functions: Refused = None
    function_call: Refused = None
    parallel_tool_calls: Refused = None
    audio: Refused = None
    prediction: Refused = None
    metadata: Refused = None
    reasoning_effort: Refused = None
    verbosity: Refused = None
    web_search_options: Refused = None
    prompt_cache_key: Refused = None
    safety_identifier: Refused = None
