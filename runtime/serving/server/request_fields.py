"""Declares the fields that the bodies of several endpoints share.

Unknown fields are refused by their names, unless lenient_fields.py has taken them out of the body before. Fields that
OpenAI's API has and this server does not support take only null.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    model_validator,
)
from pydantic_core import PydanticCustomError

from tensorwright.runtime.base import request_bounds as bounds
from tensorwright.runtime.base.parameter_checks import weigh


class StrictModel(BaseModel):
    """The base of a body or of a part of one. It takes no unknown fields and no numbers in quotes."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _few_keys(cls, value: Any) -> Any:
        """Refuses a dict of too many keys at once, for each unknown key would be an error of its own."""
        return at_most(bounds.BODY_KEYS, "keys")(value) if isinstance(value, dict) else value


def at_most(most: int, what: str) -> Callable[[Any], Any]:
    """Returns a validator that bounds the length of a dict before all other checks. what: the name of the dict's parts,
    in the plural."""

    def check(value: Any) -> Any:
        if isinstance(value, dict) and len(value) > most:
            details = {"most": most, "what": what, "came": len(value)}
            raise PydanticCustomError("too_long", "there must be at most {most} {what}, got {came}", details)
        return value

    return check


def _light_schema(value: Any) -> Any:
    if isinstance(value, dict) and not weigh(value, bounds.GRAMMAR_LENGTH, characters=True):
        raise PydanticCustomError(
            "too_long", "a schema must have at most {most} characters", {"most": bounds.GRAMMAR_LENGTH}
        )
    return value


# These tags mark a field that takes a text or something else, so that errors describe only the form that was sent.
# describe_invalid leaves names in <> out of the error's place.
TEXT, OTHER = Tag("<text>"), Tag("<other>")
TEXT_OR_OTHER = Discriminator(lambda value: (TEXT if isinstance(value, str) else OTHER).tag)

Name = Annotated[str, Field(max_length=bounds.NAME_LENGTH)]
Grammar = Annotated[str, Field(max_length=bounds.GRAMMAR_LENGTH)]
CallArguments = Annotated[str, Field(max_length=bounds.CALL_ARGUMENTS)]
SchemaText = Annotated[str, Field(max_length=bounds.SCHEMA_LENGTH)]
Schema = Annotated[dict[str, Any], BeforeValidator(_light_schema)]
StopText = Annotated[str, Field(max_length=bounds.STOP_LENGTH)]
Stops = Annotated[
    Annotated[StopText, TEXT] | Annotated[list[StopText], Field(max_length=bounds.STOP_STRINGS, fail_fast=True), OTHER],
    TEXT_OR_OTHER,
]
BadWord = Annotated[str, Field(max_length=bounds.BAD_WORD_LENGTH)]
Biases = Annotated[
    dict[str, float],
    Field(max_length=bounds.BODY_LOGIT_BIASES),
    BeforeValidator(at_most(bounds.BODY_LOGIT_BIASES, "entries")),
]
Breaker = Annotated[str, Field(min_length=1, max_length=bounds.DRY_BREAKER_LENGTH)]
Penalty = Annotated[float, Field(ge=bounds.PENALTIES[0], le=bounds.PENALTIES[1])]
RepetitionPenalty = Annotated[float, Field(ge=bounds.REPETITION_PENALTIES[0], le=bounds.REPETITION_PENALTIES[1])]


def refused(reason: str = "") -> BeforeValidator:
    """Returns the validator of a field that takes only null. reason: a sentence without its point that says why, and
    what to do instead."""

    def check(value: Any, info: ValidationInfo) -> Any:
        if value is not None:
            details = {
                "name": str(info.field_name),
                "why": f": {reason}, and leave it out" if reason else ": leave it out",
            }
            raise PydanticCustomError("unsupported_field", "{name} is not supported by this server{why}", details)
        return value

    return BeforeValidator(check)


REFUSED = Field(description="Not supported: null, or left out.")
Refused = Annotated[None, refused(), REFUSED]


class Ignorable:
    """Marks a field that changes nothing that a caller relies on, so that a lenient server leaves it out.

    taken: the values that the field takes nonetheless.
    """

    def __init__(self, *taken: Any):
        self.taken = taken


Ignored = Annotated[None, refused(), Field(description="Left out; not supported with --strict."), Ignorable(None)]


class StreamOptions(StrictModel):
    """The options of a stream. include_usage: whether one more event, before the last, has the whole request's token
    counts."""

    include_usage: bool | None = None
    include_obfuscation: Annotated[Literal[False] | None, Ignorable(None, False)] = None


class JsonSchema(StrictModel):
    """A JSON schema. The schema is always enforced, whatever `strict` says."""

    name: Name
    description: str | None = None
    schema_: Schema = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(StrictModel):
    """The form that the text must have: any text, a JSON object, or JSON that json_schema admits."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class TurnFields(StrictModel):
    """The fields that say which model computes a request, and when, in every API.

    model: the model's name; it may be left out where the server has one model.
    priority: requests of higher priority start first; --max-priority of the server bounds it.
    deadline: seconds within which the request must end; if it cannot, it ends with an error (504) at once.
    cache_salt: requests share the prefix cache with requests of the same salt; without one, with those of the same key.
    """

    model: Name | None = None
    priority: int | None = Field(None, gt=-(2**31), lt=2**31)
    deadline: float | None = Field(None, ge=0, le=bounds.MAX_TIMEOUT)
    cache_salt: Annotated[str, Field(min_length=1, max_length=bounds.SALT_LENGTH)] | None = None


class DrawingFields(TurnFields):
    """The fields that say how tokens are drawn, in every API. A field that is null or left out
    has the default of SamplingParams, which is OpenAI's. The model's own default comes first for temperature, top_p,
    top_k, min_p and repetition_penalty, if its generation_config.json names one and the server runs without
    --generation-config neutral.
    """

    temperature: float | None = Field(None, ge=0, le=bounds.TEMPERATURES[1])
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, lt=2**31)
    min_p: float | None = Field(None, ge=0, le=1)
    typical_p: float | None = Field(None, gt=0, le=1)
    xtc_threshold: float | None = Field(None, ge=0, le=1)
    xtc_probability: float | None = Field(None, ge=0, le=1)
    dry_multiplier: float | None = Field(None, ge=bounds.DRY_MULTIPLIERS[0], le=bounds.DRY_MULTIPLIERS[1])
    dry_base: float | None = Field(None, ge=bounds.DRY_BASES[0], le=bounds.DRY_BASES[1])
    dry_allowed_length: int | None = Field(None, ge=1, lt=2**31)
    dry_penalty_last_n: int | None = Field(None, ge=-1, lt=2**31)
    dry_sequence_breakers: Annotated[list[Breaker], Field(max_length=bounds.DRY_BREAKERS, fail_fast=True)] | None = None
    no_repeat_ngram_size: int | None = Field(None, ge=0, lt=2**31)
    logits_processors: Refused = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: RepetitionPenalty | None = None
    seed: int | None = Field(None, ge=-(2**63), le=bounds.MAX_SEED)
    logit_bias: Biases | None = None
    min_tokens: int | None = Field(None, ge=0, lt=2**31)
    ignore_eos: bool | None = None


class SamplingFields(DrawingFields):
    """The fields of sampling that both kinds of completions have. The model's own default of the length counts for a
    chat's answer too.

    user: accepted and not used.
    use_beam_search: the n completions are the best of a search of best_of beams, or of n; without stream.
    best_of: the number of beams; without use_beam_search null or n, for completions are not ranked.
    length_penalty, early_stopping: of the beam search, as in transformers.
    guided_*, response_format: at most one of them; guided_whitespace_pattern says what may stand between the parts of
    JSON.
    """

    n: int | None = Field(None, ge=1, le=bounds.COMPLETIONS)
    stop: Stops | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    user: Name | None = None

    use_beam_search: bool | None = None
    best_of: int | None = Field(None, ge=1, le=bounds.COMPLETIONS)
    length_penalty: Penalty | None = None
    early_stopping: Literal[False, True, "never"] | None = None
    stop_token_ids: Annotated[list[int], Field(max_length=bounds.STOP_TOKEN_IDS, fail_fast=True)] | None = None
    bad_words: Annotated[list[BadWord], Field(max_length=bounds.BAD_WORDS, fail_fast=True)] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = Field(None, ge=1, lt=2**31)
    guided_json: Annotated[Annotated[SchemaText, TEXT] | Annotated[Schema, OTHER], TEXT_OR_OTHER] | None = None
    guided_regex: Grammar | None = None
    guided_choice: Annotated[list[Grammar], Field(max_length=bounds.GRAMMAR_CHOICES, fail_fast=True)] | None = None
    guided_grammar: Grammar | None = None
    guided_whitespace_pattern: Grammar | None = None
