"""What the bodies of completions and chat completions have in common.

Unknown fields are refused by their name, and so is what OpenAI's API has and this server has not: such fields take null
alone.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo
from pydantic_core import PydanticCustomError

from tensorwright.runtime.parameter_checks import SALT_LENGTH

MOST_LOGPROBS = 20  # per token, as at OpenAI: every one makes an answer larger
MOST_CHOICES = 128


class StrictModel(BaseModel):
    """A body or a part of one: no unknown fields, and no numbers in quotes."""

    model_config = ConfigDict(extra="forbid", strict=True)


def _refuse(value: Any, info: ValidationInfo) -> Any:
    if value is not None:
        raise PydanticCustomError(
            "unsupported_field", "{name} is not supported by this server: leave it out", {"name": str(info.field_name)}
        )
    return value


Refused = Annotated[None, BeforeValidator(_refuse), Field(description="Not supported: null, or left out.")]


class StreamOptions(StrictModel):
    """include_usage: one more event, before the last, with the tokens of the whole request."""

    include_usage: bool = False
    include_obfuscation: Literal[False] | None = None


class JsonSchema(StrictModel):
    """The schema always holds, whatever strict says."""

    name: str
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(StrictModel):
    """What the text must be: anything, a JSON object, or what json_schema admits."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class SamplingFields(StrictModel):
    """Where a field is null or left out, the default of SamplingParams holds, which is OpenAI's. Before that come the
    model's own for temperature, top_p, top_k, min_p, repetition_penalty and the length of a chat's answer, if its
    generation_config.json names them and the server was not started with --generation-config neutral.

    model: may be left out where there is one alone. priority: higher ones start first; the server says how high it may
    be (--max-priority). cache_salt: requests share the prefix cache with those of the same salt; left out, with those of
    the same key. user: taken and not used.
    guided_*: at most one of them and response_format; guided_whitespace_pattern says what stands between the parts of
    JSON.
    """

    model: str | None = None
    n: int | None = Field(None, ge=1, le=MOST_CHOICES)
    temperature: float | None = Field(None, ge=0, le=1e6)
    top_p: float | None = Field(None, gt=0, le=1)
    presence_penalty: float | None = Field(None, ge=-100, le=100)
    frequency_penalty: float | None = Field(None, ge=-100, le=100)
    logit_bias: dict[str, float] | None = None
    seed: int | None = Field(None, ge=-(2**63), lt=2**64)
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    user: str | None = None

    top_k: int | None = Field(None, ge=-1, lt=2**31)
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, ge=0.01, le=100)
    min_tokens: int | None = Field(None, ge=0, lt=2**31)
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = Field(None, ge=1, lt=2**31)
    priority: int | None = Field(None, gt=-(2**31), lt=2**31)
    cache_salt: str | None = Field(None, min_length=1, max_length=SALT_LENGTH)
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_whitespace_pattern: str | None = None
