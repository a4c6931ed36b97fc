"""Fixes longrope, which has two sets of frequencies and takes the long one beyond the model's original length.

An engine serves many sequences in one step, so the set is chosen once: by the longest sequence it may see.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tensorwright.errors import UnsupportedModelError

LONGROPE = "longrope"


def fix_longrope(model: PreTrainedModel, max_seq_len: int) -> dict[str, Any]:
    """Makes every longrope of `model` use, at all lengths, the frequencies it has at `max_seq_len`, in place.

    Returns {"factors": "short" or "long", "original_max_position_embeddings"}, by layer type if the model has tables
    per layer type; {} without longrope. Raises UnsupportedModelError if a module has its own kind of longrope.
    """
    chosen: dict[str, Any] = {}
    for name, module in model.named_modules():
        kinds = getattr(module, "rope_type", None)
        if kinds == LONGROPE:
            chosen = _fix(name, module, None, max_seq_len)
            module.rope_type = "default"
        elif isinstance(kinds, dict):
            layered = [layer for layer, kind in kinds.items() if kind == LONGROPE]
            chosen |= {layer: _fix(name, module, layer, max_seq_len) for layer in layered}
            module.rope_type = {layer: "default" if kind == LONGROPE else kind for layer, kind in kinds.items()}
    return chosen


def _fix(name: str, module: Any, layer_type: str | None, max_seq_len: int) -> dict[str, Any]:
    """Sets the frequencies, and checks that the module gives what it gave before at the longest length."""
    config = module.config
    parameters = config.rope_parameters if layer_type is None else config.rope_parameters[layer_type]
    original = parameters["original_max_position_embeddings"]
    more = {} if layer_type is None else {"layer_type": layer_type}
    frequencies, _ = ROPE_INIT_FUNCTIONS[LONGROPE](config, "cpu", seq_len=max_seq_len, **more)
    before = copy.deepcopy(module)
    setattr(
        module, "inv_freq" if layer_type is None else f"{layer_type}_inv_freq", nn.Buffer(frequencies, persistent=False)
    )
    after = copy.deepcopy(module)
    after.rope_type = "default" if layer_type is None else {**module.rope_type, layer_type: "default"}
    if not rotates_alike(before, after, layer_type, max_seq_len):
        raise UnsupportedModelError(
            f"{name} ({type(module).__name__}) has a longrope of its own kind, which cannot be fixed at build; "
            "supported: frequencies from short_factor and long_factor, with one attention factor"
        )
    return {"factors": "long" if max_seq_len > original else "short", "original_max_position_embeddings": original}


def rotates_alike(one: Any, other: Any, layer_type: str | None, max_seq_len: int) -> bool:
    """Returns whether two rotary modules give the same cosines and sines in a sequence of `max_seq_len` tokens."""
    more = {} if layer_type is None else {"layer_type": layer_type}
    positions, x = torch.tensor([[0, 1, max_seq_len - 1]]), torch.zeros(1)
    pairs = zip(one(x, positions, **more), other(x, positions, **more), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)
