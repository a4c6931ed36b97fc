"""A tiny config of any type: the class's own defaults, with known sizes made small and one layer of each kind.

What follows from the names of a config's fields is derived. EXTRAS has what does not.
"""

from __future__ import annotations

from typing import Any

from transformers import CONFIG_MAPPING, PreTrainedConfig

VOCABULARY = 101
FIRST_SPECIAL = 97
"""Prompts have ids below this one. Those above stand for images, sounds and the like."""


def _each(value: Any, names: str) -> dict[str, Any]:
    return dict.fromkeys(names.split(), value)


SIZES: dict[str, Any] = {
    **_each(VOCABULARY, "vocab_size vocab_size_per_layer_input unpadded_vocab_size"),
    **_each(32, "hidden_size n_embd d_model embed_dim embedding_dim word_embed_proj_dim lru_width out_hidden_size"),
    **_each(48, "intermediate_size ffn_dim dff dim_ff n_inner d_inner ffn_hidden_size decoder_ffn_dim"),
    **_each(48, "intermediate_size_mlp dense_intermediate_size encoder_ffn_dim"),
    **_each(20, "shared_intermediate_size shared_expert_intermediate_size shared_experts_intermediate_size"),
    **_each(20, "moe_shared_expert_intermediate_size share_expert_dim"),
    **_each(24, "moe_intermediate_size expert_ffn_hidden_size"),
    **_each(4, "num_attention_heads n_head n_heads num_heads attention_heads decoder_attention_heads"),
    **_each(4, "encoder_attention_heads"),
    **_each(4, "swa_num_attention_heads num_sliding_attention_heads"),
    **_each(2, "num_key_value_heads swa_num_key_value_heads num_query_groups"),
    **_each(8, "head_dim swa_head_dim kv_channels dim_head d_head rotary_dim"),
    **_each(128, "max_position_embeddings n_positions n_ctx max_seq_len context_length model_max_length index_topk"),
    **_each(16, "sliding_window sliding_window_size window_size attention_chunk_size local_attention"),
    **_each(16, "attention_window_size floor_scale"),
    **_each(8, "num_experts num_local_experts n_routed_experts moe_num_experts"),
    **_each(3, "num_experts_per_tok moe_topk moe_k num_experts_per_token"),
    **_each(1, "first_k_dense_replace n_shared_experts num_shared_experts moe_num_shared_experts"),
    "n_group": 4,
    "topk_group": 2,
    "q_lora_rank": 20,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "index_head_dim": 8,
    "index_n_heads": 2,
    **_each(2, "linear_num_key_heads mamba_n_groups n_groups mamba_ngroups"),
    **_each(4, "linear_num_value_heads linear_num_heads mamba_n_heads mamba_num_heads n_mamba_heads"),
    **_each(12, "linear_key_head_dim mamba_d_state ssm_state_size state_size"),
    **_each(8, "linear_value_head_dim linear_head_dim"),
    **_each(16, "mamba_chunk_size chunk_size mamba_d_head mamba_head_dim mamba_headdim"),
    **_each(4, "mamba_dt_rank time_step_rank"),
    **_each(2, "depth encoder_layers num_hidden_layers n_layer n_layers num_layers layers num_blocks decoder_layers"),
}
"""A field -> its size, where the class has it and its default is larger."""

LARGE = 512
"""Numbers of parts beside the text from here on are sizes, whatever they are called."""

LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "layers", "num_blocks", "decoder_layers")

BOTH_KINDS = {"layer_types": ["sliding_attention", "full_attention"]}
HYBRID = {"layer_types": ["linear_attention", "full_attention"]}
TWO_ROPES = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    "full_attention": {"rope_type": "default", "rope_theta": 1e5},
}
PARTIAL = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}
HEADS_OF_EIGHT = {"head_dim": 8}


def mrope(*sections: int) -> dict[str, Any]:
    """Parts of each head that turn by the time, the row and the column of a piece of an image."""
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": list(sections)}}


def merged(fields: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """`fields` with `options` instead; of configs inside, and of other dicts, the entries that options name."""
    inner = {
        k: merged(fields[k], v) for k, v in options.items() if isinstance(v, dict) and isinstance(fields.get(k), dict)
    }
    return {**fields, **options, **inner}


EXTRAS: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "blt": {"encoder_hash_byte_group_vocab": 100},
    "chameleon": {"vocabulary_map": {"<image>": 100}},
    "codegen": {"rotary_dim": 4},
    "cohere": {"logit_scale": 0.3},
    "cohere2": {"logit_scale": 0.3},
    "cohere_compass_text": {
        "logit_scale": 0.3,
        "rope_parameters": {kind: {**table, "mrope_section": [1, 1, 2]} for kind, table in TWO_ROPES.items()},
        **BOTH_KINDS,
    },
    "cosmos3_edge": {"projector_hidden_size": 32},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0}, "ffn_config": {"moe_top_k": 2}},
    "deepseek_ocr2": {"text_config": {"num_experts_per_tok": 3, "mlp_layer_types": ["dense", "sparse"]}},
    "deepseek_v2": {"first_k_dense_replace": 1, "num_experts_per_tok": 3},
    "deepseek_v3": {"n_group": 4, "topk_group": 2},
    "dots1": {
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "n_group": 4,
        "topk_group": 2,
        "num_experts_per_tok": 3,
    },
    "dots3_note_text": {
        "swa_num_attention_heads": 3,
        "swa_num_key_value_heads": 3,
        "swa_q_lora_rank": 16,
        "swa_kv_lora_rank": 12,
        "swa_head_dim": 10,
        "swa_qk_nope_head_dim": 6,
        "swa_v_head_dim": 8,
    },
    "emu3": {"vocabulary_map": {"<image>": 100}},
    "ernie4_5_moe": {"moe_layer_start_index": 1, "moe_layer_end_index": 1},
    "ernie4_5_vl_moe": {"text_config": {"head_dim": 16, **mrope(2, 2, 4)}},
    "exaone4": BOTH_KINDS,
    "falcon_h1": {"mamba_d_ssm": 64},
    "gemma2": {"query_pre_attn_scalar": 12},
    "gemma3_text": {"query_pre_attn_scalar": 12, "rope_parameters": TWO_ROPES},
    "gemma3n_text": {
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "activation_sparsity_pattern": [0.9, 0.0, 0.9, 0.0],
        "hidden_size_per_layer_input": 8,
        "laurel_rank": 6,
    },
    "glm4v": {"text_config": mrope(1, 1, 2)},
    "glm4v_moe": {"text_config": merged({"head_dim": 16, **PARTIAL}, mrope(1, 1, 2))},
    "glm5_next": {"text_config": {"index_kpool": 4}},
    "glm_ocr": {"text_config": mrope(1, 1, 2)},
    "gpt_bigcode": {"n_inner": 48},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "gptj": {"rotary_dim": 4},
    "granite4_vision": {
        "vision_config": {"hidden_size": 64},
        "deepstack_layer_map": [[-1, 0]],
        "downsample_rate": "1/2",
    },
    "granitemoehybrid": HYBRID,
    "hunyuan_v1_dense": HEADS_OF_EIGHT,
    "hunyuan_v1_moe": {"head_dim": 8, "num_experts": 8, "moe_topk": 2},
    "hunyuan_vl": {"text_config": {"head_dim": 8, **mrope(1, 1, 1, 1)}},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "longcat_flash": {"zero_expert_num": 4},
    "llama4_text": {"floor_scale": 8},
    "mamba": {"state_size": 8},
    "mamba2": {"num_heads": 4, "head_dim": 16},
    "minimax_m3_vl_text": {"layer_types": ["full_attention", "minimax_m3_sparse"], "index_block_size": 16},
    "ministral3": {"rope_parameters": {"original_max_position_embeddings": 16, "llama_4_scaling_beta": 0.3}},
    "ministral": {"head_dim": 8, **BOTH_KINDS},
    "mistral4": {"head_dim": 20},
    "mistral_large4": {"text_config": {"kv_source_layers": [0, 1, 2]}},
    "molmo2": {"adapter_config": {"vision_feature_layer": [-1, -2], "text_hidden_size": 32}},
    "nemotron": {"head_dim": 8, "num_key_value_heads": 2, **PARTIAL},
    "olmo3": {"rope_parameters": TWO_ROPES},
    "paddleocr_vl": {"text_config": mrope(1, 1, 2)},
    "qwen2_5_omni_thinker": {"text_config": mrope(1, 1, 2)},
    "qwen2_5_vl": {"text_config": mrope(1, 1, 2), "vision_config": {"fullatt_block_indexes": [0]}},
    "qwen2_vl": {"text_config": mrope(1, 1, 2)},
    "qwen3_vl": {"text_config": {"head_dim": 12, **mrope(2, 2, 2)}, "vision_config": {"deepstack_visual_indexes": [0]}},
    "qwen4_exp_text": {
        "hc_lowrank": 12,
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 8,
        "indexer_budget": 8,
        "indexer_compress_ratio": 4,
    },
    "recurrent_gemma": {"block_types": ["recurrent", "attention"], "num_key_value_heads": 1},
    "smollm3": {"no_rope_layers": [1, 0]},
    "step3p7": {
        "text_config": {
            "sliding_window": 16,
            "swiglu_limits": [0.0, 0.05],
            "swiglu_limits_shared": [0.0, 0.05],
            **BOTH_KINDS,
        }
    },
    "unlimited_ocr": {"text_config": {"num_key_value_heads": 4}},
    "vaultgemma": {"query_pre_attn_scalar": 12},
    "zamba": {"num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid"] * 2},
    "zaya": {"router_hidden_size": 16},
}
"""A type -> what its config says beside SIZES. Configs inside are dicts."""


def tiny_config(name: str, options: dict[str, Any] | None = None) -> PreTrainedConfig:
    """The config of the type `name`, with `options` on top."""
    config_class = CONFIG_MAPPING[name]
    fields = tiny_fields(config_class())
    return config_class(**merged(merged(fields, EXTRAS.get(name, {})), options or {}))


def tiny_fields(default: PreTrainedConfig, *, beside: bool = False) -> dict[str, Any]:
    """What to give the class of `default`, a config of its defaults, to make a tiny one.

    beside: it is of a part beside the text, which is made and never run.
    """
    written = default.to_dict()
    fields: dict[str, Any] = {}
    for name, value in written.items():
        part = vars(default).get(name)
        if isinstance(part, PreTrainedConfig):
            fields[name] = {
                **tiny_fields(part, beside=part is not default.get_text_config()),
                "model_type": part.model_type,
            }
        elif name in SIZES and type(value) is int and value > SIZES[name]:
            fields[name] = SIZES[name]
        elif beside and type(value) is int and value >= LARGE and not name.endswith(("_id", "_index")):
            fields[name] = 32
    fields |= layer_fields(written)
    fields |= special_tokens(written)
    if "kv_lora_rank" in written and "num_key_value_heads" in fields:
        fields["num_key_value_heads"] = fields["num_attention_heads"]
    if "image_size" in written:
        fields |= image_fields(written)
    if "mrope_section" in (written.get("rope_parameters") or {}):
        fields |= {"head_dim": 16, "rope_parameters": {**written["rope_parameters"], "mrope_section": [2, 3, 3]}}
    return fields


def layer_fields(written: dict[str, Any]) -> dict[str, Any]:
    """One layer of each kind, at least two, of all fields that have an entry per layer."""
    count = next((name for name in LAYERS if isinstance(written.get(name), int)), None)
    if count is None:
        return {}
    lists = {k: v for k, v in written.items() if isinstance(v, list) and len(v) == written[count] > 2}
    kinds = {k: v for k, v in lists.items() if len(set(map(str, v))) <= 4}
    rows = list(zip(*kinds.values(), strict=True))
    chosen = [i for i, row in enumerate(rows) if row not in rows[:i]]
    chosen = sorted({*chosen, *range(2)})[: max(2, len(chosen))] if len(chosen) < 2 else chosen
    return {count: len(chosen) if chosen else 2, **{k: [v[i] for i in chosen] for k, v in lists.items()}}


def special_tokens(written: dict[str, Any]) -> dict[str, Any]:
    """Ids within the vocabulary: none of those that prompts have, but for the padding and the ends of a text."""
    ends = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    named = [k for k in written if k.endswith(("_token_id", "_token_index")) and k not in ends]
    large = [k for k in named if type(written[k]) is int and written[k] >= FIRST_SPECIAL]
    ids = {k: max(VOCABULARY - 1 - i, FIRST_SPECIAL) for i, k in enumerate(large)}
    return {**ids, **{k: v for k, v in ends.items() if written.get(k) is not None or k == "pad_token_id"}}


def image_fields(written: dict[str, Any]) -> dict[str, Any]:
    """The sizes of what reads images: 2 x 2 patches. Nothing of it is ever run."""
    sides = {k: 16 if k == "image_size" else 8 for k in ("image_size", "patch_size") if k in written}
    return {k: [v] * len(written[k]) if isinstance(written[k], list | tuple) else v for k, v in sides.items()}
