"""What a model's generation_config.json says of sampling: the defaults of what a request leaves out.

As vLLM has it, `do_sample` does not count: temperature 0 is greedy, and nothing else is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensorwright.engine_format.file_names import GENERATION_CONFIG
from tensorwright.errors import EngineError, InvalidOptionError, InvalidRequestError
from tensorwright.runtime.engine.engine_dir import EngineDir
from tensorwright.runtime.requests.sampling_params import AtMost, SamplingParams

GENERATION_CONFIGS = ("model", "neutral")
"""Whose defaults hold: the model's, or those of SamplingParams alone."""

_FIELDS = {
    "temperature": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p",
    "repetition_penalty": "repetition_penalty", "max_new_tokens": "max_tokens",
}  # fmt: skip
_DISTRIBUTION = ("temperature", "top_k", "top_p", "min_p")


def named_defaults(engine: EngineDir) -> dict[str, Any]:
    """Fields of SamplingParams that the file names, with its values as they are; {} without a file."""
    config = engine.read_json(GENERATION_CONFIG)
    return {field: config[name] for name, field in _FIELDS.items() if config.get(name) is not None}


def check_generation_config(generation_config: Any) -> None:
    """InvalidOptionError unless it is one of GENERATION_CONFIGS."""
    if generation_config not in GENERATION_CONFIGS:
        known = ", ".join(GENERATION_CONFIGS)
        raise InvalidOptionError(f"generation_config must be one of {known}, got {generation_config!r}")


def sampling_defaults(engine: EngineDir, generation_config: str) -> dict[str, Any]:
    """Fields of SamplingParams whose default is not its own. EngineError for a value that cannot be."""
    check_generation_config(generation_config)
    if generation_config == "neutral":
        return {}
    found = named_defaults(engine)
    try:
        SamplingParams(**found)
    except InvalidRequestError as error:
        raise EngineError(
            f"{engine.path / GENERATION_CONFIG}: {error}; leave the model's defaults out with "
            "generation_config='neutral'"
        ) from error
    return {name: AtMost(value) if name == "max_tokens" else value for name, value in found.items()}


def without_length(defaults: Mapping[str, Any]) -> dict[str, Any]:
    """For a door that has a default length of its own."""
    return {name: value for name, value in defaults.items() if name != "max_tokens"}


def shapes_distribution(defaults: Mapping[str, Any]) -> bool:
    """Whether they say how tokens are drawn: then a door that is greedy by default is not."""
    return any(name in defaults for name in _DISTRIBUTION)
