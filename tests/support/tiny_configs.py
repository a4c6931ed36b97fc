"""Config values of the tiny models: what makes each family's features show."""

from __future__ import annotations

from typing import Any

COMMON: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-5,
}

LLAMA3_ROPE: dict[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}

YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}

LONGROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.3, 1.6],
    "long_factor": [1.4, 2.0, 3.0, 4.0],
}

LATENT: dict[str, Any] = {
    "pad_token_id": 0,
    "num_key_value_heads": 4,
    "q_lora_rank": 20,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
}

INDEXED: dict[str, Any] = {**LATENT, "index_topk": 128, "index_head_dim": 12, "index_n_heads": 2}
"""Latent attention whose indexers pick every position."""

GRANITE: dict[str, Any] = {
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.3,
    "attention_multiplier": 0.2,
    "logits_scaling": 3.0,
}

GEMMA: dict[str, Any] = {"head_dim": 8, "tie_word_embeddings": True, "pad_token_id": 0}

GEMMA2: dict[str, Any] = {
    "head_dim": 8,
    "sliding_window": 16,
    "query_pre_attn_scalar": 12,
    "attn_logit_softcapping": 4.0,
    "final_logit_softcapping": 3.0,
    "tie_word_embeddings": True,
    "pad_token_id": 0,
}

FLINT: dict[str, Any] = {
    "head_dim": 8,
    "sliding_window": 16,
    "layer_types": ["sliding_attention"] * 2,  # the others do not rotate
    "mlp_only_layers": [0, 1],  # the others are mixtures of experts
    "num_experts": 2,
    "pad_token_id": 0,
}

TWO_TABLES: dict[str, Any] = {
    "sliding_window": 16,
    "pad_token_id": 0,
    "layer_types": ["sliding_attention", "full_attention"],
}
"""Layers with a window, and layers without, have rotary tables of their own."""

GEMMA3: dict[str, Any] = {
    **TWO_TABLES,
    "head_dim": 8,
    "query_pre_attn_scalar": 12,
    "tie_word_embeddings": True,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {"rope_type": "linear", "rope_theta": 1e5, "factor": 8.0},
    },
}

GEMMA4: dict[str, Any] = {
    "pad_token_id": 0,
    "head_dim": 8,
    "global_head_dim": 12,
    "sliding_window": 16,
    "layer_types": ["sliding_attention", "full_attention"],
    "final_logit_softcapping": 20.0,
    "tie_word_embeddings": True,
}

OLMO3: dict[str, Any] = {
    **TWO_TABLES,
    "rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 1e4}, "full_attention": YARN},
}

STARCODER2: dict[str, Any] = {
    "sliding_window": 16,
    "norm_epsilon": 1e-4,
    "tie_word_embeddings": True,
}

STABLELM: dict[str, Any] = {
    "hidden_size": 64,
    "layer_norm_eps": 1e-4,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25},
}

GPT_NEOX: dict[str, Any] = {
    "hidden_size": 64,
    "layer_norm_eps": 1e-4,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25},
}

FALCON: dict[str, Any] = {"num_key_value_heads": None, "ffn_hidden_size": 72, "tie_word_embeddings": True}

OPT: dict[str, Any] = {
    "num_key_value_heads": None,
    "ffn_dim": 48,
    "word_embed_proj_dim": 32,
    "pad_token_id": 0,
    "tie_word_embeddings": True,
}

PARTIAL_ROPE: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}

EXPERTS: dict[str, Any] = {
    "num_experts": 6,
    "num_local_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "pad_token_id": 0,
}

LFM2: dict[str, Any] = {
    "pad_token_id": 0,
    "num_hidden_layers": 3,
    "layer_types": ["conv", "full_attention", "conv"],
    "block_auto_adjust_ff_dim": False,
    "norm_eps": 1e-5,
}

MAMBA: dict[str, Any] = {"pad_token_id": 0, "hidden_size": 36, "state_size": 12, "time_step_rank": 5}
"""72 channels that are no multiple of a vector's lanes."""

JAMBA: dict[str, Any] = {
    "pad_token_id": 0,
    "num_hidden_layers": 3,
    "attn_layer_period": 2,
    "attn_layer_offset": 1,
    "expert_layer_period": 2,
    "expert_layer_offset": 0,
    "num_experts": 1,
    "mamba_d_state": 12,
    "mamba_dt_rank": 5,
}
"""Layers that scan, and may have mixtures of experts, around one that attends and has a dense MLP."""

MAMBA2: dict[str, Any] = {
    "pad_token_id": 0,
    "num_heads": 4,
    "head_dim": 16,
    "state_size": 12,
    "n_groups": 2,
    "chunk_size": 16,
    "time_step_limit": [0.03, 0.08],
}

MAMBA2_LAYERS: dict[str, Any] = {
    "pad_token_id": 0,
    "mamba_n_heads": 4,
    "mamba_d_state": 12,
    "mamba_chunk_size": 16,
    "mamba_n_groups": 2,
}
"""The recurrent layers of hybrids."""

NEMOTRON_H: dict[str, Any] = {
    "pad_token_id": 0,
    "layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention"],
    "head_dim": 8,
    "mamba_num_heads": 4,
    "mamba_head_dim": 16,
    "ssm_state_size": 12,
    "n_groups": 2,
    "chunk_size": 16,
    "time_step_limit": [0.03, 0.08],
}
"""Layers of one part each."""

NEMOTRON_H_EXPERTS: dict[str, Any] = {
    "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"],
    "n_routed_experts": 8,
    "n_group": 4,
    "topk_group": 2,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "moe_shared_expert_intermediate_size": 20,
    "routed_scaling_factor": 1.7,
}

DELTA_LAYERS: dict[str, Any] = {
    "pad_token_id": 0,
    "head_dim": 16,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 8,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.25,
    },
}
"""Hybrids with gated delta rules."""

FALCON_H1: dict[str, Any] = {
    **MAMBA2_LAYERS,
    "mamba_d_ssm": 64,
    "ssm_multipliers": [0.7, 1.0, 1.3, 0.8, 1.5],
    "ssm_in_multiplier": 1.25,
    "ssm_out_multiplier": 0.6,
    "key_multiplier": 0.4,
    "mlp_multipliers": [0.5, 0.8],
    "attention_out_multiplier": 0.9,
    "embedding_multiplier": 3.0,
    "lm_head_multiplier": 0.5,
}

ERNIE_MOE: dict[str, Any] = {
    **EXPERTS,
    "moe_num_experts": 6,
    "moe_k": 3,
    "moe_num_shared_experts": 1,
    "moe_layer_start_index": 1,
    "head_dim": 8,
    "pad_token_id": 0,
    "tie_word_embeddings": True,
}

LLAMA4: dict[str, Any] = {
    **EXPERTS,
    "intermediate_size": 24,
    "intermediate_size_mlp": 40,
    "head_dim": 8,
    "no_rope_layers": [1, 0],
}

GLM4_MOE: dict[str, Any] = {
    **EXPERTS,
    "num_experts": 8,
    "num_local_experts": 8,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.7,
    "head_dim": 8,
    "use_qk_norm": True,
    "pad_token_id": 0,
}

LATENT_EXPERTS: dict[str, Any] = {
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.7,
}
"""The mixtures of families with latent attention."""

DEEPSEEK_V2_EXPERTS: dict[str, Any] = {
    **LATENT_EXPERTS,
    "topk_method": "group_limited_greedy",
    "n_shared_experts": 2,
}

KIMI_LINEAR: dict[str, Any] = {
    **LATENT,
    "q_lora_rank": None,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "num_hidden_layers": 3,
    "linear_num_heads": 4,
    "linear_head_dim": 12,
    "linear_conv_kernel_dim": 3,
    "mlp_layer_types": ["dense", "sparse", "sparse"],
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "num_local_experts": 8,
    "n_shared_experts": 1,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 1.7,
}

MINIMAX: dict[str, Any] = {
    "head_dim": 8,
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "block_size": 16,
    "num_local_experts": 6,
    "num_experts_per_tok": 3,
    "full_attn_alpha_factor": 1.1,
    "linear_attn_alpha_factor": 1.2,
    "linear_attn_beta_factor": 0.8,
    "mlp_beta_factor": 0.9,
}

RECURRENT_GEMMA: dict[str, Any] = {
    "pad_token_id": 0,
    "num_hidden_layers": 3,
    "num_key_value_heads": 1,
    "attention_window_size": 16,
    "conv1d_width": 3,
    "w_init_variance_scale": 1e-3,  # matrices like those of other families: gates near 0 or 1 would make decays round
    "logits_soft_cap": 3.0,
    "tie_word_embeddings": True,
}

GPT_OSS: dict[str, Any] = {
    **EXPERTS,
    "head_dim": 8,
    "sliding_window": 16,
    "layer_types": ["sliding_attention", "full_attention"],
    "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32},
    "swiglu_limit": 0.5,  # which every other row reaches
}

ZAMBA2: dict[str, Any] = {
    "pad_token_id": 0,
    "num_hidden_layers": 4,
    "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"],
    "n_mamba_heads": 4,
    "mamba_d_state": 12,
    "mamba_ngroups": 2,
    "chunk_size": 16,
    "adapter_rank": 6,
    "tie_word_embeddings": True,
}
"""One block of attention and an MLP that two layers call, each with an adapter of its own."""
