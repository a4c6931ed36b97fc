"""The EAGLE-3 draft head as a torch module, from checkpoints as the authors and as vLLM's speculators write them.

Li et al. 2025, "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test": one
decoder layer reads the embedding of the next token beside a feature of this position. The feature is made of the
target's hidden states at three depths, or, behind the first proposed token, it is the head's own output. Position i of
the head has token i + 1 and feature i, and predicts token i + 2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import LlamaConfig
from transformers.masking_utils import create_causal_mask
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)

from tensorwright.errors import CheckpointError, UnsupportedModelError

NESTED = "transformer_layer_config"
"""The key under which speculators keep the config of the decoder layer."""
LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
DEPTHS = 3
ROPE_TYPES = ("default", "linear", "llama3", "yarn")
"""Rotary embeddings whose frequencies do not depend on the length of a text."""


@dataclass(frozen=True)
class Eagle3Options:
    """What config.json says beside the decoder layer.

    draft_vocab: the tokens that the head may propose. layers: the target's layers whose inputs make the feature; None
    leaves them to the target's depth. norm_before_residual: the residual begins behind the norm of the feature.
    norm_before_fc: the three hidden states together are normed first. norm_output: the head's own feature is its
    output behind the last norm.
    """

    draft_vocab: int
    target_hidden: int
    layers: tuple[int, ...] | None = None
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    norm_output: bool = False

    def layers_of(self, depth: int) -> tuple[int, ...]:
        """Returns the target's layers whose inputs make the feature, for a target of `depth` layers: by default one
        near the beginning, the middle one and one near the end."""
        layers = self.layers or (2, depth // 2, depth - 3)
        if len(layers) != DEPTHS or not all(0 <= layer <= depth for layer in layers):
            raise CheckpointError(
                f"{LAYER_IDS} must name {DEPTHS} layers of the target's {depth}, 0 to {depth}, not {list(layers)}"
            )
        return layers


def read_options(config: Mapping[str, Any]) -> tuple[LlamaConfig, Eagle3Options]:
    """Returns the config of the decoder layer, and what else config.json says. Raises UnsupportedModelError for a head
    of another kind than one Llama layer, and CheckpointError."""
    nested = config.get(NESTED)
    layer = dict(nested if isinstance(nested, Mapping) else config)
    if layer.get("model_type", "llama") != "llama" or layer.get("num_hidden_layers", 1) != 1:
        raise UnsupportedModelError(
            f"an EAGLE-3 head must be one Llama layer, not {layer.get('num_hidden_layers', 1)} of "
            f"{layer.get('model_type')!r}"
        )
    if config.get("fc_norm"):
        raise UnsupportedModelError("an EAGLE-3 head with fc_norm is not supported")
    for key in ("architectures", "model_type", "auto_map", "torch_dtype", "dtype"):
        layer.pop(key, None)
    try:
        read = LlamaConfig(**layer)
    except Exception as error:  # config classes validate with exceptions of many types
        raise CheckpointError(f"the head's config.json is none of a Llama layer: {error}") from error
    rope = (read.rope_parameters or {}).get("rope_type", "default")
    if rope not in ROPE_TYPES:
        raise UnsupportedModelError(f"an EAGLE-3 head must have a rope of type {', '.join(ROPE_TYPES)}, not {rope!r}")
    options = Eagle3Options(
        draft_vocab=_size(config, "draft_vocab_size", read.vocab_size),
        target_hidden=_size(config, "target_hidden_size", read.hidden_size),
        layers=_layer_ids(config.get(LAYER_IDS)),
        norm_before_residual=bool(config.get("norm_before_residual", False)),
        norm_before_fc=bool(config.get("norm_before_fc", False)),
        norm_output=bool(config.get("norm_output", False)),
    )
    return read, options


def _size(config: Mapping[str, Any], key: str, default: int) -> int:
    value = config.get(key)
    if value is None:
        return default
    if type(value) is not int or value < 1:
        raise CheckpointError(f"the head's config.json: {key} must be a positive whole number, not {value!r}")
    return value


def _layer_ids(value: Any) -> tuple[int, ...] | None:
    if value is None:
        return None
    if not isinstance(value, Sequence) or not all(type(each) is int for each in value):
        raise CheckpointError(f"{LAYER_IDS} must be a list of layers, not {value!r}")
    return tuple(value)


class Eagle3Features(nn.Module):
    """Makes the feature [1, S, H] of the target's hidden states at three depths, [1, S, target_hidden] each."""

    def __init__(self, config: LlamaConfig, options: Eagle3Options):
        super().__init__()
        width = DEPTHS * options.target_hidden
        self.input_norm = LlamaRMSNorm(width, eps=config.rms_norm_eps) if options.norm_before_fc else None
        self.fc = nn.Linear(width, config.hidden_size, bias=False)

    def forward(self, hidden: Sequence[torch.Tensor]) -> torch.Tensor:
        joined = torch.cat(list(hidden), dim=-1)
        return self.fc(joined if self.input_norm is None else self.input_norm(joined))


class _Layer(nn.Module):
    """The decoder layer: a Llama layer whose attention reads the embedding beside the feature."""

    def __init__(self, config: LlamaConfig, options: Eagle3Options):
        super().__init__()
        self.before_residual = options.norm_before_residual
        self.self_attn = LlamaAttention(config, layer_idx=0)
        for name in ("q_proj", "k_proj", "v_proj"):
            old = getattr(self.self_attn, name)
            wide = nn.Linear(2 * config.hidden_size, old.out_features, bias=old.bias is not None)
            setattr(self.self_attn, name, wide)
        self.mlp = LlamaMLP(config)
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.hidden_norm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, embedded: torch.Tensor, features: torch.Tensor, **attention: Any) -> torch.Tensor:
        normed = self.hidden_norm(features)
        residual = normed if self.before_residual else features
        both = torch.cat([self.input_layernorm(embedded), normed], dim=-1)
        hidden = residual + self.self_attn(hidden_states=both, **attention)[0]
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Eagle3Head(nn.Module):
    """Token ids [1, S] of the next positions, positions [1, S] and features [1, S, H] -> logits [1, S, draft_vocab] and
    the head's own features [1, S, H]."""

    def __init__(self, config: LlamaConfig, options: Eagle3Options):
        super().__init__()
        config._attn_implementation = "eager"
        self.config, self.options = config, options
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.midlayer = _Layer(config, options)
        self.norm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, options.draft_vocab, bias=False)
        self.rotary_emb = LlamaRotaryEmbedding(config=config)

    def forward(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor, given_features: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        embedded = self.embed_tokens(input_ids)
        mask = create_causal_mask(
            config=self.config,
            inputs_embeds=embedded,
            attention_mask=None,
            past_key_values=None,
            position_ids=position_ids,
        )
        rotary = self.rotary_emb(embedded, position_ids=position_ids)
        hidden = self.midlayer(embedded, given_features, attention_mask=mask, position_embeddings=rotary)
        normed = self.norm(hidden)
        return self.lm_head(normed), normed if self.options.norm_output else hidden
