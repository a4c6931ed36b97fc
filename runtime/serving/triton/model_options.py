"""The parameters of a model's config.pbtxt: which engine, which interface, and the options of LLM.

All values are text, as Triton has them. Unknown parameters are refused. generation_config is "neutral" unless it is
there: TensorRT-LLM's clients know its defaults, not the model's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tensorwright.errors import InvalidOptionError
from tensorwright.runtime.base.keywords import closest
from tensorwright.runtime.requests.generation_defaults import check_generation_config

LLM_INTEGERS = (
    "max_batch_size", "max_num_tokens", "max_prefill_chunk", "max_prompt_logprob_rows", "threads", "max_queue_size",
)  # fmt: skip
LLM_TEXTS = ("kv_cache_memory", "load", "guided_vocabulary", "generation_config")
LLM_FLAGS = ("enable_prefix_caching",)
LLM_OPTIONS = (*LLM_INTEGERS, *LLM_TEXTS, *LLM_FLAGS)
OWN = (
    "engine", "interface", "exclude_input_in_output", "cancellation_check_period_ms", "chat_template", "max_priority",
)  # fmt: skip
TRITONS = ("EXECUTION_ENV_PATH", "FORCE_CPU_ONLY_INPUT_TENSORS")  # read by Triton's Python backend itself


@dataclass(frozen=True)
class ModelOptions:
    """engine: as written, relative to the model's folder or absolute. exclude_input_in_output: what holds for requests
    that do not say. cancellation_check_period_ms: how often Triton is asked which requests were cancelled.
    chat_template: text_input is what a user says, put into this template: a file, relative as engine is, or the name of
    one of the model's, such as "default"; None: text_input is the prompt. max_priority: most that the input `priority`
    may be."""

    engine: str
    interface: str = "both"
    exclude_input_in_output: bool = False
    cancellation_check_period_ms: int = 20
    chat_template: str | None = None
    max_priority: int = 0
    llm: dict[str, Any] = field(default_factory=dict)

    def engine_path(self, model_folder: str | Path) -> Path:
        return Path(model_folder) / Path(self.engine).expanduser()

    def template(self, model_folder: str | Path) -> str | None:
        """As LLM takes it. Raises InvalidOptionError for a file that cannot be read or is no template."""
        if self.chat_template is None:
            return None
        from tensorwright.runtime.text.chat_template import read_argument  # imports Jinja

        return read_argument(self.chat_template, "config.pbtxt: parameter 'chat_template':", Path(model_folder))


def parse_options(config: Mapping[str, Any]) -> ModelOptions:
    """config: a model's configuration as Triton hands it out, from JSON."""
    values = {key: str(value["string_value"]) for key, value in config.get("parameters", {}).items()}
    for key in values:
        if key not in (*OWN, *LLM_OPTIONS, *TRITONS):
            raise InvalidOptionError(f"config.pbtxt: no parameter {key!r}; {closest(key, (*OWN, *LLM_OPTIONS))}")
    if not values.get("engine"):
        raise InvalidOptionError("config.pbtxt: parameter 'engine' must name an engine directory")
    fields: dict[str, Any] = {"engine": values["engine"], "interface": values.get("interface", "both")}
    if "exclude_input_in_output" in values:
        fields["exclude_input_in_output"] = _flag("exclude_input_in_output", values)
    if "cancellation_check_period_ms" in values:
        fields["cancellation_check_period_ms"] = _integer("cancellation_check_period_ms", values)
    if "max_priority" in values:
        fields["max_priority"] = _integer("max_priority", values, least=0)
    if "chat_template" in values:
        if fields["interface"] == "tokens":
            raise InvalidOptionError("config.pbtxt: 'chat_template' needs an interface with text, 'tokens' takes ids")
        fields["chat_template"] = values["chat_template"]
    llm: dict[str, Any] = {key: values[key] for key in LLM_TEXTS if key in values}
    llm |= {key: _integer(key, values) for key in LLM_INTEGERS if key in values}
    llm |= {key: _flag(key, values) for key in LLM_FLAGS if key in values}
    check_generation_config(llm.setdefault("generation_config", "neutral"))
    return ModelOptions(**fields, llm=llm)


def _flag(key: str, values: Mapping[str, str]) -> bool:
    if values[key].lower() not in ("true", "false"):
        raise InvalidOptionError(f"config.pbtxt: parameter {key!r} must be true or false, got {values[key]!r}")
    return values[key].lower() == "true"


def _integer(key: str, values: Mapping[str, str], least: int = 1) -> int:
    if not values[key].isascii() or not values[key].isdigit() or int(values[key]) < least:
        must = "a positive integer" if least else "0 or a positive integer"
        raise InvalidOptionError(f"config.pbtxt: parameter {key!r} must be {must}, got {values[key]!r}")
    return int(values[key])
