"""Says of each architecture of GGUF files which family of transformers it is: the config, the names, the changes.

A converter of llama.cpp renames the tensors of a checkpoint and changes a few: the rows of q and k of Llama stand in
pairs that turn together, and Gemma's norms have one added. The facts are those of transformers' own reader
(modeling_gguf_pytorch_utils.py, integrations/ggml.py) and of llama.cpp (convert_hf_to_gguf.py, llama-model.cpp) where
the reader leaves a value of the file unread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tensorwright.models.gguf.metadata import Metadata

Config: TypeAlias = dict[str, Any]

ATTENTION = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
}
HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
MLP = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
WIDTHS = {
    "context_length": "max_position_embeddings",
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "attention.head_count": "num_attention_heads",
}
WIDE = {"feed_forward_length": "intermediate_size"}


@dataclass(frozen=True)
class Family:
    """What a GGUF architecture is in transformers.

    model_type: of transformers. parts: the names of a layer's modules, by those of the file; "{}" stands for the number
    of an expert, of which the file has a stack. whole, real: metadata that the config has under another name. pairs:
    whether rows of q and k that turn together are neighbours in the file. added: what must be added to norms, whose
    names end in "norm". partial: whether fewer columns of a head than all may turn. more: computes the rest of the
    config, from the metadata, what is known of it, and the names of the file's tensors.
    """

    model_type: str
    parts: Mapping[str, str]
    whole: Mapping[str, str] = field(default_factory=lambda: WIDTHS | WIDE)
    real: Mapping[str, str] = field(default_factory=lambda: {"attention.layer_norm_rms_epsilon": "rms_norm_eps"})
    pairs: bool = False
    added: float = 0.0
    partial: bool = False
    top: Mapping[str, str] = field(default_factory=lambda: TOP)
    more: Callable[[Metadata, Config, frozenset[str]], Config] = lambda data, config, names: {}


def llama(data: Metadata, config: Config, names: frozenset[str]) -> Config:
    return {"attention_bias": "blk.0.attn_q.bias" in names, "mlp_bias": "blk.0.ffn_up.bias" in names}


FAMILIES: dict[str, Family] = {
    "llama": Family("llama", ATTENTION | MLP, pairs=True, more=llama),
    "qwen2": Family("qwen2", ATTENTION | MLP),
    "qwen3": Family("qwen3", ATTENTION | HEAD_NORMS | MLP),
}
"""The architectures that are read, by the names that files have."""
