"""Reads the defaults of sampling parameters from a model's generation_config.json.

`do_sample` is ignored, as in vLLM: only temperature 0 is greedy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensorwright.engine_format.file_names import GENERATION_CONFIG
from tensorwright.errors import EngineError, InvalidRequestError
from tensorwright.options.declare import find
from tensorwright.options.engine import EngineFields
from tensorwright.runtime.engine.engine_dir import EngineDir
from tensorwright.runtime.requests.sampling_params import DRAWING, AtMost, SamplingParams

GENERATION_FIELDS = {
    "temperature": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p",
    "repetition_penalty": "repetition_penalty", "max_new_tokens": "max_tokens",
}  # fmt: skip


def named_defaults(engine: EngineDir) -> dict[str, Any]:
    """Returns the fields of SamplingParams that the file names, with the file's unchecked values; {} without a file."""
    config = engine.read_json(GENERATION_CONFIG)
    return {field: config[name] for name, field in GENERATION_FIELDS.items() if config.get(name) is not None}


def check_generation_config(generation_config: Any) -> None:
    """Raises InvalidOptionError unless the option generation_config takes the value."""
    find(EngineFields, "generation_config").check(generation_config)


def sampling_defaults(engine: EngineDir, generation_config: str) -> dict[str, Any]:
    """Returns {field: default} for the fields of SamplingParams whose default comes from the model.

    Raises EngineError if the file has an impossible value.
    """
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
    """Returns the defaults without max_tokens, for an interface that has a default of its own for it."""
    return {name: value for name, value in defaults.items() if name != "max_tokens"}


def with_defaults(fields: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields, and the model's defaults for those that are not there. A beam search draws nothing, so it
    takes none of the defaults that say how tokens are drawn."""
    beams = fields.get("beam_width", 1) > 1
    return {name: value for name, value in defaults.items() if not (beams and name in DRAWING)} | {**fields}


def shapes_distribution(defaults: Mapping[str, Any]) -> bool:
    """Whether the defaults say how tokens are drawn. Then an interface that is greedy by default must sample."""
    return any(name in defaults for name in DRAWING)
