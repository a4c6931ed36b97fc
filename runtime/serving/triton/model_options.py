"""Reads the parameters of a model's config.pbtxt: the engine, the interface, and the options of LLM.

Triton gives all values as text. Unknown parameters are refused. Some options of LLM have other defaults here:
generation_config is "neutral", for TensorRT-LLM's clients expect the defaults of TensorRT-LLM, not those of the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tensorwright.errors import InvalidOptionError
from tensorwright.options.declare import Door, Option, options_at
from tensorwright.options.engine import EngineFields
from tensorwright.options.triton import ModelFields
from tensorwright.runtime.base.keywords import closest
from tensorwright.runtime.requests.generation_defaults import check_generation_config

OWN = options_at(Door.TRITON, ModelFields)
LLM_OPTIONS = options_at(Door.TRITON, EngineFields)
NAMES = tuple(option.name for option in (*OWN, *LLM_OPTIONS))
MAX_TASK_DIGITS = 20
"""The digits of the largest lora_task_id, which is a number of 64 bits."""
TRITONS = ("EXECUTION_ENV_PATH", "FORCE_CPU_ONLY_INPUT_TENSORS")
"""The parameters that Triton's Python backend reads itself."""
OTHER_DEFAULTS = {
    option.name: option.shown(Door.TRITON).default
    for option in LLM_OPTIONS
    if option.shown(Door.TRITON).default != option.default
}
"""The keywords of LLM that have another default in Triton."""


@dataclass(frozen=True)
class ModelOptions(ModelFields):
    """The fields of ModelFields. llm: the keywords of LLM."""

    llm: dict[str, Any] = field(default_factory=dict)

    def engine_path(self, model_folder: str | Path) -> Path:
        return Path(model_folder) / Path(self.engine).expanduser()

    def adapters(self, model_folder: str | Path) -> dict[str, Path]:
        """Returns the folders of adapters by lora_task_id. Raises InvalidOptionError for a text of another form."""
        found: dict[str, Path] = {}
        for text in self.lora_adapters.split(",") if self.lora_adapters else ():
            task, equals, path = text.strip().partition("=")
            good = equals and path and task.isascii() and task.isdigit() and len(task) <= MAX_TASK_DIGITS
            if not good or str(int(task)) in found:
                raise InvalidOptionError(
                    "config.pbtxt: parameter 'lora_adapters' must have ID=PATH for each adapter, with ids that differ, "
                    f"got {text!r}"
                )
            found[str(int(task))] = Path(model_folder) / Path(path).expanduser()
        return found

    def template(self, model_folder: str | Path) -> str | None:
        """Returns the chat template in the form that LLM takes, or None. Raises InvalidOptionError for a file that
        cannot be read or is no template."""
        if self.chat_template is None:
            return None
        from tensorwright.runtime.text.chat_template import read_argument  # imports Jinja

        return read_argument(self.chat_template, "config.pbtxt: parameter 'chat_template':", Path(model_folder))


def parse_options(config: Mapping[str, Any]) -> ModelOptions:
    """Reads a model's parameters. Raises InvalidOptionError. config: the model's configuration, from Triton's JSON."""
    values = {key: str(value["string_value"]) for key, value in config.get("parameters", {}).items()}
    for key in values:
        if key not in (*NAMES, *TRITONS):
            raise InvalidOptionError(f"config.pbtxt: no parameter {key!r}; {closest(key, NAMES)}")
    if not values.get("engine"):
        raise InvalidOptionError("config.pbtxt: parameter 'engine' must name an engine directory")
    own = {option.name: _read(option, values[option.name]) for option in OWN if option.name in values}
    if "chat_template" in own and own.get("interface") == "tokens":
        raise InvalidOptionError("config.pbtxt: 'chat_template' needs an interface with text, 'tokens' takes ids")
    llm = {option.name: _read(option, values[option.name]) for option in LLM_OPTIONS if option.name in values}
    check_generation_config(llm.get("generation_config", OTHER_DEFAULTS["generation_config"]))
    return ModelOptions(**own, llm=OTHER_DEFAULTS | llm)


def _read(option: Option, text: str) -> Any:
    """Returns the value of a parameter's text. Raises InvalidOptionError for a text of another type. LLM or the code
    that uses the value checks its range."""
    if option.kind is bool:
        if text.lower() not in ("true", "false"):
            raise InvalidOptionError(f"config.pbtxt: parameter {option.name!r} must be true or false, got {text!r}")
        return text.lower() == "true"
    if option.kind is int:
        minimum = option.shown(Door.TRITON).minimum
        minimum = 1 if minimum is None else minimum
        if not text.isascii() or not text.isdigit() or int(text) < minimum:
            must = "a positive integer" if minimum else "0 or a positive integer"
            raise InvalidOptionError(f"config.pbtxt: parameter {option.name!r} must be {must}, got {text!r}")
        return int(text)
    return text
