"""Everything that the modules of a model hold beside what it learned: what a trace of it can depend on."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

PLAIN = (bool, int, float, str, torch.dtype)
LEARNED = "whatever it is, it is read from the checkpoint"
ORIGINS = ("name_or_path", "_name_or_path", "architectures", "transformers_version")
"""Keys of a config, and attributes of a module, that say where it came from."""
MARKS = ("_is_hf_initialized",)
"""Attributes by which transformers knows what it has done to a module."""


def numbers(model: PreTrainedModel) -> dict[str, Any]:
    """Numbers, names, tensors and configs in the modules of `model`, by their place; of parameters, and of buffers
    that checkpoints hold, type and shape."""
    found: dict[str, Any] = {}
    for name, module in model.named_modules():
        found[name] = type(module).__qualname__
        for key, value in vars(module).items():
            if key not in (*MARKS, *ORIGINS):
                collect(f"{name}.{key}", value, found)
        for key in module._buffers.keys() - module._non_persistent_buffers_set:
            found[f"{name}._buffers.{key}"] = (*found[f"{name}._buffers.{key}"][:2], LEARNED)
    return found


def collect(place: str, value: Any, found: dict[str, Any]) -> None:
    if isinstance(value, torch.Tensor):
        learned = isinstance(value, torch.nn.Parameter)
        found[place] = (value.dtype, value.shape, LEARNED if learned else value.tolist())
    elif isinstance(value, PreTrainedConfig):
        found[place] = {key: str(part) for key, part in value.to_dict().items() if key not in ORIGINS}
    elif isinstance(value, dict):
        for key, part in value.items():
            collect(f"{place}.{key}", part, found)
    elif isinstance(value, list | tuple):
        for at, part in enumerate(value):
            collect(f"{place}.{at}", part, found)
    elif value is None or isinstance(value, PLAIN):
        found[place] = value


def different(one: PreTrainedModel, other: PreTrainedModel) -> list[str]:
    """The places where two models of one structure hold different things."""
    first, second = numbers(one), numbers(other)
    return sorted(place for place in first.keys() | second.keys() if first.get(place) != second.get(place))
