"""Makes a model end with the hidden states after its final norm: what an engine for embeddings computes."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn
from transformers import AutoModel, PreTrainedConfig, PreTrainedModel

from tensorwright.errors import UnsupportedModelError


class HiddenStates(nn.Module):
    """The model as a function of token ids and positions, without a cache, with the hidden states of every position.

    model: a causal language model, of which `drop_lm_head` has taken the lm_head.
    """

    def __init__(self, model: PreTrainedModel):
        super().__init__()
        body = model.base_model
        if body is model:
            raise UnsupportedModelError(
                f"{type(model).__name__}: no part of it gives hidden states without logits; embeddings need one"
            )
        self.model = model  # weights have the names that they have in it
        self.takes_positions = "position_ids" in inspect.signature(body.forward).parameters

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        more: dict[str, Any] = {"position_ids": position_ids} if self.takes_positions else {}
        result: torch.Tensor = self.model.base_model(
            input_ids=input_ids, use_cache=False, return_dict=True, **more
        ).last_hidden_state
        return result


def drop_lm_head(model: PreTrainedModel) -> None:
    """Takes the module that computes logits away. Raises UnsupportedModelError if there is none to find."""
    head = model.get_output_embeddings()
    path = next((name for name, module in model.named_modules() if module is head and head is not None), None)
    if path is None:
        raise UnsupportedModelError(f"{type(model).__name__}: has no lm_head to leave out; embeddings need a decoder")
    model.set_submodule(path, nn.Identity())


def is_body(config: PreTrainedConfig, name: Any) -> bool:
    """Returns whether `name` is the class of a model without lm_head for this config, such as Qwen3Model."""
    mapping: Any = AutoModel._model_mapping
    return type(config) in mapping and mapping[type(config)].__name__ == name
