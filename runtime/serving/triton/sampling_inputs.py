"""Translates the sampling inputs that the text and the token interface share into SamplingParams.

The inputs have TensorRT-LLM's names. As in TensorRT-LLM, a request is greedy unless top_k or top_p asks for sampling:
temperature alone changes nothing. A beam search (beam_width above 1) gives all beams, or the num_return_sequences best,
in one response; like TensorRT-LLM's, it has the length penalty 0 and stops early unless the request says otherwise.
If the model's defaults say how tokens are drawn, the defaults hold instead, and a
request with temperature 0 or top_k 1 is greedy.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tensorwright.errors import InvalidRequestError
from tensorwright.runtime.base.parameter_checks import shown
from tensorwright.runtime.requests.generation_defaults import shapes_distribution, with_defaults, without_length
from tensorwright.runtime.requests.sampling_params import SamplingParams
from tensorwright.runtime.serving.triton.refusals import REFUSED_COMMON, check_refused
from tensorwright.runtime.serving.triton.tensors import Row, Tensor, tensors

SCHEDULING_INPUTS: tuple[Tensor, ...] = (
    *tensors("INT32", "priority"),
    *tensors("FP32", "timeout deadline"),
    *tensors("STRING", "cache_salt"),
)
"""Who runs when, how long, and who shares prefixes. TensorRT-LLM lacks them; timeout and deadline are in seconds."""
INPUTS: tuple[Tensor, ...] = (
    *tensors("INT32", "num_return_sequences end_id pad_id min_tokens beam_width"),
    *tensors("FP32", "temperature repetition_penalty presence_penalty frequency_penalty"),
    *tensors("FP32", "dry_multiplier dry_base"),
    *tensors("INT32", "dry_allowed_length dry_penalty_last_n no_repeat_ngram_size"),
    *tensors("UINT64", "seed lora_task_id"),
    *tensors(
        "BOOL",
        "return_log_probs return_perf_metrics return_num_input_tokens return_num_output_tokens "
        "exclude_input_in_output stop return_finish_reason early_stopping",
    ),
    *SCHEDULING_INPUTS,
    *tensors("STRING", "guided_decoding_guide_type guided_decoding_guide guided_decoding_whitespace_pattern"),
    *REFUSED_COMMON,
)
"""TensorRT-LLM lacks return_finish_reason, guided_decoding_whitespace_pattern, DRY and no_repeat_ngram_size too."""

_FIELD = re.compile(r"(?:SamplingParams: )?(\w+) ")
_GUIDES = {"json_schema": "json", "regex": "regex", "ebnf_grammar": "grammar"}


@contextmanager
def by_input(inputs: Mapping[str, str]) -> Iterator[None]:
    """Adds the name of the client's input to an InvalidRequestError of the context that begins with a field of
    SamplingParams. inputs: the input's name by field, for fields whose input has another name."""
    try:
        yield
    except InvalidRequestError as error:
        field = _FIELD.match(str(error))
        if field is None or field[1] not in inputs:
            raise
        raise type(error)(f"input {inputs[field[1]]!r}: {error}") from error


def optional_token(row: Row, name: str, vocab_size: int | None = None) -> int | None:
    """Returns the token id of an input, or None if it is absent or -1, which clients send for none. Raises
    InvalidRequestError. vocab_size: the bound of the id; None if the id need be no token of the model."""
    token = row.integer(name)
    if token is None or token == -1:
        return None
    if token < 0 or (vocab_size is not None and token >= vocab_size):
        below = "" if vocab_size is None else f" below {vocab_size}"
        raise InvalidRequestError(f"input {name!r} must be a token id{below}, or -1 for none, got {token}")
    return token


@dataclass(frozen=True)
class InputNames:
    """The names that the text and the token interface have for the same."""

    top_k: str
    top_p: str
    length_penalty: str
    stream: str


def scheduling_fields(row: Row) -> dict[str, Any]:
    """Returns keywords of SamplingParams, None where an input did not come. An empty cache_salt, which clients send for
    none, is none."""
    return {
        "priority": row.integer("priority"),
        "timeout": row.number("timeout"),
        "deadline": row.number("deadline"),
        "cache_salt": row.text("cache_salt") or None,
    }


def sampling_fields(row: Row, names: InputNames, defaults: Mapping[str, Any], vocab_size: int) -> dict[str, Any]:
    """Returns keywords of SamplingParams, without the number of tokens and the words. Raises InvalidRequestError.

    defaults: the model's sampling defaults.
    """
    check_refused(row)
    fields: dict[str, Any] = {"n": row.integer("num_return_sequences"), "seed": row.integer("seed")}
    fields |= _beams(row, names)
    for name in (
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "dry_multiplier",
        "dry_base",
    ):
        fields[name] = row.number(name)
    for name in ("min_tokens", "dry_allowed_length", "dry_penalty_last_n", "no_repeat_ngram_size"):
        fields[name] = row.integer(name)
    fields |= scheduling_fields(row)
    if (task := row.integer("lora_task_id")) is not None:
        fields["adapter"] = str(task)
    heat = row.number("temperature")
    top_k, top_p = row.integer(names.top_k), row.number(names.top_p)
    if "beam_width" in fields:
        # As in TensorRT-LLM, the likeliest token alone is what a search looks for anyway.
        fields |= {"temperature": heat, "top_k": None if top_k == 1 else top_k, "top_p": top_p or None}
    elif shapes_distribution(defaults):
        fields |= {"temperature": heat, "top_k": top_k, "top_p": top_p or None}
    else:
        fields |= _distribution(top_k, top_p, heat)
    if (end := optional_token(row, "end_id", vocab_size)) is not None:
        fields["stop_token_ids"], fields["ignore_eos"] = [end], True
    optional_token(row, "pad_id")  # The value is only checked: a text is not filled up.
    if row.flag("return_log_probs"):
        fields["logprobs"] = 0  # 0 asks for the logprobs of the sampled tokens only.
    if (guide := _guide(row)) is not None:
        fields["guided_decoding"] = guide
    given = {name: value for name, value in fields.items() if value is not None}
    return with_defaults(given, without_length(defaults))


def _beams(row: Row, names: InputNames) -> dict[str, Any]:
    width = row.integer("beam_width") or 1
    penalty, early = row.number(names.length_penalty), row.flag("early_stopping", True)
    if width <= 1:  # Clients send the penalty and early_stopping whether they search or not.
        return {"beam_width": width} if width < 1 else {}
    if row.flag(names.stream):
        raise InvalidRequestError(
            f"input {names.stream!r} must be false with beam_width {width}, for beams have no text before their end"
        )
    n = row.integer("num_return_sequences") or width
    return {"n": n, "beam_width": width, "length_penalty": penalty or 0.0, "early_stopping": early}


def _distribution(top_k: int | None, top_p: float | None, temperature: float | None) -> dict[str, Any]:
    if not top_k and not top_p:
        SamplingParams(temperature=1.0 if temperature is None else temperature)  # This checks a value without effect.
        return {"temperature": 0.0}
    return {"temperature": temperature, "top_k": top_k or 0, "top_p": top_p or None}


def _guide(row: Row) -> Any:
    kind, guide = row.text("guided_decoding_guide_type"), row.text("guided_decoding_guide")
    blanks = row.text("guided_decoding_whitespace_pattern")
    if not kind:
        for name, value in (("guide", guide), ("whitespace_pattern", blanks)):
            if value:
                raise InvalidRequestError(f"input 'guided_decoding_{name}' needs 'guided_decoding_guide_type'")
        return None
    if kind != "json" and kind not in _GUIDES:
        known = ", ".join(["json", *_GUIDES])
        raise InvalidRequestError(f"input 'guided_decoding_guide_type' must be one of {known}, got {shown(kind)}")
    if kind != "json" and not guide:
        raise InvalidRequestError(f"input 'guided_decoding_guide' is required by guide type {kind!r} and was not sent")
    from tensorwright.runtime.guided.params import GuidedDecodingParams

    if kind == "json":
        return GuidedDecodingParams(json_object=True, whitespace_pattern=blanks)
    texts: dict[str, Any] = {_GUIDES[kind]: guide}
    return GuidedDecodingParams(**texts, whitespace_pattern=blanks)
