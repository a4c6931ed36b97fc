"""Lists the parameters of SamplingParams that the C++ engine takes as they are: the member of each, and its form there.

Python sets them on `_runtime.Sampling` by this table (native_sampling.py), and the C interface reads them from JSON by
it (runtime/c_interface/declarations.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class NativeParam(NamedTuple):
    """member: the name in runtime/core/scheduler/request.h, where `Sampling` is. form: one of FORMS."""

    member: str
    form: str


FORMS: dict[str, Callable[[Any], Any]] = {
    "integer": int,
    "limit": lambda value: max(0, int(value)),
    "number": float,
    "flag": bool,
    "optional_seconds": lambda value: -1.0 if value is None else float(value),
    "optional_count": lambda value: -1 if value is None else int(value),
    "seed": lambda value: None if value is None else int(value),
    "salt": lambda value: value or "",
    "early_stopping": {False: "no", True: "yes", "never": "never"}.__getitem__,
    "token_ids": list,
    "biases": list,
}
"""What makes the C++ engine's value of a checked parameter, by the name of the form."""

NATIVE_PARAMS: dict[str, NativeParam] = {
    "n": NativeParam("n", "integer"),
    "beam_width": NativeParam("beam_width", "integer"),
    "length_penalty": NativeParam("length_penalty", "number"),
    "early_stopping": NativeParam("early_stopping", "early_stopping"),
    "min_tokens": NativeParam("min_tokens", "integer"),
    "temperature": NativeParam("temperature", "number"),
    "top_k": NativeParam("top_k", "limit"),
    "top_p": NativeParam("top_p", "number"),
    "min_p": NativeParam("min_p", "number"),
    "typical_p": NativeParam("typical_p", "number"),
    "xtc_threshold": NativeParam("xtc_threshold", "number"),
    "xtc_probability": NativeParam("xtc_probability", "number"),
    "repetition_penalty": NativeParam("repetition_penalty", "number"),
    "presence_penalty": NativeParam("presence_penalty", "number"),
    "frequency_penalty": NativeParam("frequency_penalty", "number"),
    "dry_multiplier": NativeParam("dry_multiplier", "number"),
    "dry_base": NativeParam("dry_base", "number"),
    "dry_allowed_length": NativeParam("dry_allowed_length", "integer"),
    "dry_penalty_last_n": NativeParam("dry_penalty_last_n", "integer"),
    "no_repeat_ngram_size": NativeParam("no_repeat_ngram_size", "integer"),
    "logit_bias": NativeParam("logit_bias", "biases"),
    "seed": NativeParam("seed", "seed"),
    "stop_token_ids": NativeParam("stop_token_ids", "token_ids"),
    "ignore_eos": NativeParam("ignore_eos", "flag"),
    "logprobs": NativeParam("logprobs", "optional_count"),
    "prompt_logprobs": NativeParam("prompt_logprobs", "optional_count"),
    "timeout": NativeParam("timeout_s", "optional_seconds"),
    "priority": NativeParam("priority", "integer"),
    "tenant": NativeParam("tenant", "integer"),
    "tenant_weight": NativeParam("tenant_weight", "number"),
    "deadline": NativeParam("deadline_s", "optional_seconds"),
    "cache_salt": NativeParam("cache_salt", "salt"),
}
"""By name. What is not here needs the tokenizer, code of the caller, or room in the engine."""
