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


Shape: TypeAlias = tuple[int, ...]

EXPERTS = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj",
}
SHARED_EXPERT = {
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
MIXTURE = {
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
}
FOUR_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
RMS_EPS, NORM_EPS = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"


@dataclass(frozen=True)
class Family:
    """What a GGUF architecture is in transformers.

    model_type: of transformers. parts: the names of a layer's modules, by those of the file; "{}" stands for the number
    of an expert, of which the file has a stack. whole, real: metadata that the config has under another name. pairs:
    whether rows of q and k that turn together are neighbours in the file. added: what must be added to the weights of
    norms. rotary: whether heads turn; partial: whether fewer columns of a head than all may. layers: what stands before
    the number of a layer. transposed: modules whose matrices have inputs as rows. reshaped: the model's shape of the
    tensors of a module, from the file's. more: computes the rest of the config, from the metadata, what is known of it,
    and the names of the file's tensors.
    """

    model_type: str
    parts: Mapping[str, str]
    whole: Mapping[str, str] = field(default_factory=lambda: WIDTHS | WIDE)
    real: Mapping[str, str] = field(default_factory=lambda: {RMS_EPS: "rms_norm_eps"})
    pairs: bool = False
    added: float = 0.0
    rotary: bool = True
    partial: bool = False
    layers: str = "model.layers"
    top: Mapping[str, str] = field(default_factory=lambda: TOP)
    transposed: frozenset[str] = frozenset()
    reshaped: Mapping[str, Callable[[Shape], Shape]] = field(default_factory=dict)
    more: Callable[[Metadata, Config, frozenset[str]], Config] = lambda data, config, names: {}


def _llama(data: Metadata, config: Config, names: frozenset[str]) -> Config:
    return {"attention_bias": "blk.0.attn_q.bias" in names, "mlp_bias": "blk.0.ffn_up.bias" in names}


def _qwen2moe(data: Metadata, config: Config, names: frozenset[str]) -> Config:
    width = data.whole("expert_shared_feed_forward_length", config["intermediate_size"])
    return {"shared_expert_intermediate_size": width, "norm_topk_prob": False}


def _gemma2(data: Metadata, config: Config, names: frozenset[str]) -> Config:
    """The widths of heads scale queries, but in the model of 27 B, as in llama.cpp."""
    large = config["num_hidden_layers"] == 46
    return {
        "sliding_window": data.whole("attention.sliding_window", 4096),
        "attn_logit_softcapping": data.real("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": data.real("final_logit_softcapping", 30.0),
        "query_pre_attn_scalar": _query_scale(config, large),
    }


def _gemma3(data: Metadata, config: Config, names: frozenset[str]) -> Config:
    """Of six layers the last attends to all positions; the others' rope has a base of its own and is not scaled."""
    every, count = data.whole("attention.sliding_window_pattern", 6), config["num_hidden_layers"]
    softcap = data.real("final_logit_softcapping", 0.0)
    local = {"rope_type": "default", "rope_theta": data.real("rope.freq_base_swa", 10000.0)}
    kinds = ["full_attention" if every and (i + 1) % every == 0 else "sliding_attention" for i in range(count)]
    return {
        "sliding_window": data.whole("attention.sliding_window"),
        "layer_types": kinds,
        "final_logit_softcapping": softcap or None,
        "query_pre_attn_scalar": _query_scale(config, count == 62),
        "rope_parameters": {"full_attention": config["rope_parameters"], "sliding_attention": local},
    }


def _query_scale(config: Config, large: bool) -> int:
    return int(config["hidden_size"] // config["num_attention_heads"] if large else config["head_dim"])


def _phi3(data: Metadata, config: Config, names: frozenset[str]) -> Config:
    return {"sliding_window": data.whole("attention.sliding_window", 0) or None}


def _starcoder2(data: Metadata, config: Config, names: frozenset[str]) -> Config:
    return {"use_bias": "blk.0.attn_q.bias" in names, "sliding_window": None}


def _stablelm(data: Metadata, config: Config, names: frozenset[str]) -> Config:
    data.skip("use_parallel_residual")
    return {"use_qkv_bias": "blk.0.attn_q.bias" in names, "use_parallel_residual": "blk.0.ffn_norm.weight" not in names}


def _lfm2(data: Metadata, config: Config, names: frozenset[str]) -> Config:
    kv_heads = data.numbers("attention.head_count_kv", config["num_hidden_layers"])
    return {
        "layer_types": ["full_attention" if heads else "conv" for heads in kv_heads],
        "conv_bias": any(name.endswith("shortconv.in_proj.bias") for name in names),
        "block_auto_adjust_ff_dim": False,
    }


_LFM2_PARTS = {
    "attn_norm": "operator_norm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.out_proj",
    "attn_q_norm": "self_attn.q_layernorm",
    "attn_k_norm": "self_attn.k_layernorm",
    "ffn_norm": "ffn_norm",
    "ffn_gate": "feed_forward.w1",
    "ffn_up": "feed_forward.w3",
    "ffn_down": "feed_forward.w2",
    "shortconv.in_proj": "conv.in_proj",
    "shortconv.conv": "conv.conv",
    "shortconv.out_proj": "conv.out_proj",
}
_GPT2_PARTS = {
    "attn_norm": "ln_1",
    "attn_qkv": "attn.c_attn",
    "attn_output": "attn.c_proj",
    "ffn_norm": "ln_2",
    "ffn_up": "mlp.c_fc",
    "ffn_down": "mlp.c_proj",
}
_GPT2_TOP = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
}
_GEMMA = ATTENTION | FOUR_NORMS | MLP
_PHI3 = {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj", "ffn_down": "mlp.down_proj"}
_JOINED = {name: ATTENTION[name] for name in ("attn_norm", "attn_output", "ffn_norm")} | _PHI3
_UP_AND_DOWN = {"ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}

FAMILIES: dict[str, Family] = {
    "llama": Family("llama", ATTENTION | MLP, pairs=True, more=_llama),
    "qwen2": Family("qwen2", ATTENTION | MLP),
    "qwen2moe": Family(
        "qwen2_moe",
        ATTENTION | EXPERTS | SHARED_EXPERT,
        WIDTHS | WIDE | MIXTURE,
        reshaped={"ffn_gate_inp_shexp": lambda shape: (1, *shape[-1:])},
        more=_qwen2moe,
    ),
    "qwen3": Family("qwen3", ATTENTION | HEAD_NORMS | MLP),
    "qwen3moe": Family(
        "qwen3_moe",
        ATTENTION | HEAD_NORMS | EXPERTS,
        WIDTHS | WIDE | MIXTURE,
        more=lambda data, config, names: {"norm_topk_prob": True},
    ),
    "gemma2": Family("gemma2", _GEMMA, added=-1.0, more=_gemma2),
    "gemma3": Family("gemma3_text", _GEMMA | HEAD_NORMS, added=-1.0, more=_gemma3),
    "phi3": Family("phi3", _JOINED, partial=True, more=_phi3),
    "starcoder2": Family(
        "starcoder2",
        ATTENTION | {"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
        real={NORM_EPS: "norm_epsilon"},
        more=_starcoder2,
    ),
    "stablelm": Family("stablelm", ATTENTION | MLP, real={NORM_EPS: "layer_norm_eps"}, partial=True, more=_stablelm),
    "nemotron": Family("nemotron", ATTENTION | _UP_AND_DOWN, real={NORM_EPS: "norm_eps"}, partial=True, added=-1.0),
    "gpt2": Family(
        "gpt2",
        _GPT2_PARTS,
        WIDTHS | {"feed_forward_length": "n_inner"},
        {NORM_EPS: "layer_norm_epsilon"},
        rotary=False,
        layers="transformer.h",
        top=_GPT2_TOP,
        transposed=frozenset({"attn_qkv", "attn_output", "ffn_up", "ffn_down"}),
    ),
    "lfm2": Family(
        "lfm2",
        _LFM2_PARTS,
        WIDTHS | WIDE | {"shortconv.l_cache": "conv_L_cache"},
        {RMS_EPS: "norm_eps"},
        top={"token_embd": "model.embed_tokens", "token_embd_norm": "model.embedding_norm", "output": "lm_head"},
        reshaped={"shortconv.conv": lambda shape: (shape[0], 1, *shape[1:])},
        more=_lfm2,
    ),
}
"""The architectures that are read, by the names that files have."""
