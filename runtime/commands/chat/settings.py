"""Holds how answers are drawn, and changes it by the names that the command's options have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tensorwright.errors import InvalidRequestError
from tensorwright.options.chat import CHAT_SAMPLING, TEMPERATURE
from tensorwright.options.declare import Option
from tensorwright.runtime.requests.sampling_params import SamplingParams

_CHANGEABLE = {option.name: option for option in CHAT_SAMPLING if not option.repeated}


class Settings:
    """How answers are drawn: what the user asked for, over the model's defaults."""

    def __init__(self, asked: Mapping[str, Any], defaults: Mapping[str, Any]):
        """asked: by the names of CHAT_SAMPLING; None means that the user did not say. defaults: LLM.sampling_defaults.
        Raises InvalidRequestError."""
        self._defaults = {"temperature": TEMPERATURE, "max_tokens": None, **defaults}
        self.params = SamplingParams(**{**self._defaults, **{k: v for k, v in asked.items() if v not in (None, ())}})

    def change(self, name: str, text: str) -> None:
        """Sets one parameter to what a text says; "default" brings back the default. Raises InvalidRequestError."""
        option = _CHANGEABLE.get(name.replace("-", "_"))
        if option is None:
            raise InvalidRequestError(f"there is no setting {name!r:.40}; settings are {', '.join(_CHANGEABLE)}")
        own = getattr(SamplingParams(), option.name)
        value = self._defaults.get(option.name, own) if text == "default" else _value(option, text)
        self.params = replace(self.params, **{option.name: value})

    def shown(self) -> list[str]:
        """Returns every setting with its value, one in a line."""
        return [f"{name:20} {getattr(self.params, name)}" for name in _CHANGEABLE]


def _value(option: Option, text: str) -> Any:
    if option.kind is bool:
        if text not in ("true", "false"):
            raise InvalidRequestError(f"{option.name} must be true or false, not {text!r:.40}")
        return text == "true"
    try:
        return option.kind(text)
    except ValueError as error:
        raise InvalidRequestError(f"{option.name} must be a number, not {text!r:.40}") from error
