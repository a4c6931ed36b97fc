"""Random tiny checkpoints on disk, one per family, for everybody's tests.

Every parameter is randomised far from its init, so that a dropped bias, norm weight or scale shows in the logits.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import (
    AutoModelForCausalLM,
    BambaConfig,
    BioGptConfig,
    CodeGenConfig,
    CohereConfig,
    DeepseekV2Config,
    DeepseekV3Config,
    Ernie4_5_MoeConfig,
    Ernie4_5Config,
    FalconConfig,
    FalconH1Config,
    FlexOlmoConfig,
    FlintConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    Glm4Config,
    Glm4MoeConfig,
    Glm4MoeLiteConfig,
    GlmConfig,
    GPT2Config,
    GPTBigCodeConfig,
    GPTJConfig,
    GPTNeoXConfig,
    GptOssConfig,
    GraniteConfig,
    GraniteMoeConfig,
    GraniteMoeHybridConfig,
    GraniteMoeSharedConfig,
    HeliumConfig,
    HunYuanDenseV1Config,
    Lfm2Config,
    LlamaConfig,
    Mamba2Config,
    MiniCPM3Config,
    MiniMaxM2Config,
    MistralConfig,
    MixtralConfig,
    NanoChatConfig,
    NemotronConfig,
    Olmo2Config,
    Olmo3Config,
    OlmoeConfig,
    OPTConfig,
    Phi3Config,
    PhimoeConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    Qwen3NextConfig,
    SmolLM3Config,
    StableLmConfig,
    Starcoder2Config,
)

from support.tiny_configs import (
    COMMON,
    DEEPSEEK_V2_EXPERTS,
    DELTA_LAYERS,
    ERNIE_MOE,
    EXPERTS,
    FALCON,
    FALCON_H1,
    FLINT,
    GEMMA,
    GEMMA2,
    GEMMA3,
    GLM4_MOE,
    GPT_NEOX,
    GPT_OSS,
    GRANITE,
    LATENT,
    LATENT_EXPERTS,
    LFM2,
    LLAMA3_ROPE,
    LONGROPE,
    MAMBA2,
    MAMBA2_LAYERS,
    OLMO3,
    OPT,
    PARTIAL_ROPE,
    STABLELM,
    STARCODER2,
    YARN,
)
from tensorwright.models.registry import Expected, expectations

NEVER = Expected()

_FAMILIES: dict[str, tuple[type[PreTrainedConfig], dict[str, Any]]] = {
    "llama": (LlamaConfig, {"head_dim": 8}),
    "qwen2": (Qwen2Config, {"tie_word_embeddings": True}),
    "mistral": (MistralConfig, {"head_dim": 8, "sliding_window": 16}),
    "qwen3": (Qwen3Config, {"head_dim": 12}),
    "olmo2": (Olmo2Config, {"pad_token_id": 0}),
    "granite": (GraniteConfig, GRANITE),
    "phi3": (Phi3Config, {"pad_token_id": 0, "sliding_window": 16}),
    "gemma": (GemmaConfig, GEMMA),
    "gemma2": (Gemma2Config, GEMMA2),
    "flint": (FlintConfig, FLINT),
    "gemma3_text": (Gemma3TextConfig, GEMMA3),
    "olmo3": (Olmo3Config, OLMO3),
    "starcoder2": (Starcoder2Config, STARCODER2),
    "stablelm": (StableLmConfig, STABLELM),
    "gpt_neox": (GPTNeoXConfig, GPT_NEOX),
    "gpt2": (GPT2Config, {"num_key_value_heads": None, "tie_word_embeddings": True}),
    "falcon": (FalconConfig, FALCON),
    "cohere": (CohereConfig, {"pad_token_id": 0, "logit_scale": 0.3, "tie_word_embeddings": True}),
    "ernie4_5": (Ernie4_5Config, {"pad_token_id": 0, "head_dim": 8, "tie_word_embeddings": True}),
    "glm4": (Glm4Config, {"pad_token_id": 0, "head_dim": 8, "rope_parameters": PARTIAL_ROPE}),
    "helium": (HeliumConfig, {"pad_token_id": 0, "head_dim": 8}),
    "glm": (GlmConfig, {"pad_token_id": 0, "head_dim": 8, "rope_parameters": PARTIAL_ROPE}),
    "nemotron": (NemotronConfig, {"head_dim": 8, "rope_parameters": PARTIAL_ROPE}),
    "smollm3": (SmolLM3Config, {"pad_token_id": 0, "no_rope_layers": [1, 0]}),
    "opt": (OPTConfig, OPT),
    "biogpt": (BioGptConfig, {"pad_token_id": 0, "tie_word_embeddings": True}),
    "gpt_bigcode": (GPTBigCodeConfig, {"num_key_value_heads": None, "n_inner": 48, "tie_word_embeddings": True}),
    "gptj": (GPTJConfig, {"num_key_value_heads": None, "rotary_dim": 4}),
    "codegen": (CodeGenConfig, {"num_key_value_heads": None, "rotary_dim": 4}),
    "hunyuan_v1_dense": (HunYuanDenseV1Config, {"pad_token_id": 0, "head_dim": 8}),
    "nanochat": (NanoChatConfig, {"pad_token_id": 0}),
    "ernie4_5_moe": (Ernie4_5_MoeConfig, ERNIE_MOE),
    "flex_olmo": (FlexOlmoConfig, EXPERTS),
    "glm4_moe": (Glm4MoeConfig, GLM4_MOE),
    "gpt_oss": (GptOssConfig, GPT_OSS),
    "granitemoe": (GraniteMoeConfig, {**GRANITE, **EXPERTS}),
    "granitemoeshared": (GraniteMoeSharedConfig, {**GRANITE, **EXPERTS, "shared_intermediate_size": 20}),
    "minicpm3": (MiniCPM3Config, {**LATENT, "scale_emb": 3, "dim_model_base": 16}),
    "deepseek_v2": (DeepseekV2Config, {**LATENT, "first_k_dense_replace": 2}),
    "deepseek_v3": (DeepseekV3Config, {**LATENT, "first_k_dense_replace": 2}),
    "glm4_moe_lite": (Glm4MoeLiteConfig, {**LATENT, "mlp_layer_types": ["dense"] * 2}),
    "minimax_m2": (MiniMaxM2Config, {**EXPERTS, "head_dim": 8}),
    "mixtral": (MixtralConfig, {**EXPERTS, "head_dim": 8}),
    "olmoe": (OlmoeConfig, EXPERTS),
    "phimoe": (PhimoeConfig, {**EXPERTS, "num_experts_per_tok": 2, "router_jitter_noise": 0.2, "lm_head_bias": True}),
    "qwen2_moe": (Qwen2MoeConfig, {**EXPERTS, "shared_expert_intermediate_size": 20, "norm_topk_prob": True}),
    "qwen3_moe": (Qwen3MoeConfig, {**EXPERTS, "head_dim": 12, "norm_topk_prob": True}),
    "lfm2": (Lfm2Config, LFM2),
    "mamba2": (Mamba2Config, MAMBA2),
    "bamba": (BambaConfig, {**MAMBA2_LAYERS, "attn_layer_indices": [1]}),
    "granitemoehybrid": (
        GraniteMoeHybridConfig,
        {
            **GRANITE,
            **MAMBA2_LAYERS,
            "layer_types": ["linear_attention", "full_attention"],
            "num_local_experts": 0,
            "shared_intermediate_size": 48,
        },
    ),
    "qwen3_5_text": (
        Qwen3_5TextConfig,
        DELTA_LAYERS,
    ),
    "qwen3_next": (Qwen3NextConfig, {**DELTA_LAYERS, **EXPERTS, "mlp_only_layers": [0, 1], "decoder_sparse_step": 1}),
    "falcon_h1": (FalconH1Config, FALCON_H1),
}

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama_tied": ("llama", {"tie_word_embeddings": True}),
    "llama3_rope": ("llama", {"rope_parameters": LLAMA3_ROPE}),
    "llama_linear_rope": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}),
    "llama_yarn": ("llama", {"head_dim": 24, "rope_parameters": YARN}),
    "llama_yarn_mscale": (
        "llama",
        {"head_dim": 24, "rope_parameters": {**YARN, "mscale": 0.9, "mscale_all_dim": 0.4, "truncate": False}},
    ),
    "llama_yarn_attention_factor": (
        "llama",
        {"head_dim": 24, "rope_parameters": {**YARN, "attention_factor": 0.8, "beta_fast": 4.0, "beta_slow": 0.5}},
    ),
    "llama_biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama_wide_heads": ("llama", {"head_dim": 24}),
    "llama_mqa": ("llama", {"num_attention_heads": 6, "num_key_value_heads": 1, "head_dim": 10, "hidden_size": 48}),
    "llama_mha": ("llama", {"num_key_value_heads": 4, "vocab_size": 97}),
    "qwen2": ("qwen2", {}),
    "qwen2_untied": ("qwen2", {"tie_word_embeddings": False, "num_attention_heads": 8, "hidden_size": 64}),
    "mistral": ("mistral", {}),
    "qwen3": ("qwen3", {}),
    "olmo2": ("olmo2", {}),
    "granite": ("granite", {}),
    "phi3": ("phi3", {}),
    "phi3_longrope": ("phi3", {"original_max_position_embeddings": 32, "rope_parameters": LONGROPE}),
    "phi3_longrope_partial": (
        "phi3",
        {
            "hidden_size": 64,
            "original_max_position_embeddings": 32,
            "rope_parameters": {**LONGROPE, "partial_rotary_factor": 0.5, "attention_factor": 1.3},
        },
    ),
    "gemma": ("gemma", {}),
    "gemma2": ("gemma2", {}),
    "flint": ("flint", {}),
    "gemma3": ("gemma3_text", {}),
    "olmo3": ("olmo3", {}),
    "starcoder2": ("starcoder2", {}),
    "stablelm": ("stablelm", {}),
    "stablelm_parallel": ("stablelm", {"use_parallel_residual": True, "use_qkv_bias": True}),
    "stablelm_head_norms": ("stablelm", {"qk_layernorm": True}),
    "gpt_neox": ("gpt_neox", {}),
    "gpt_neox_serial": ("gpt_neox", {"use_parallel_residual": False, "hidden_act": "relu"}),
    "gpt2": ("gpt2", {}),
    "gpt2_unscaled": ("gpt2", {"scale_attn_weights": False, "n_inner": 56, "tie_word_embeddings": False}),
    "gpt2_layer_scales": ("gpt2", {"scale_attn_by_inverse_layer_idx": True, "num_hidden_layers": 3}),
    "falcon": ("falcon", {}),
    "falcon_groups": ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon_one_norm": (
        "falcon",
        {"new_decoder_architecture": True, "num_kv_heads": 1, "num_ln_in_parallel_attn": 1, "bias": True},
    ),
    "falcon_serial": ("falcon", {"multi_query": False, "parallel_attn": False, "bias": True}),
    "cohere": ("cohere", {}),
    "ernie4_5": ("ernie4_5", {}),
    "glm": ("glm", {}),
    "glm4": ("glm4", {}),
    "helium": ("helium", {}),
    "nemotron": ("nemotron", {}),
    "smollm3": ("smollm3", {}),
    "opt": ("opt", {}),
    "opt_post_norm": ("opt", {"do_layer_norm_before": False, "word_embed_proj_dim": 24}),
    "biogpt": ("biogpt", {}),
    "gpt_bigcode": ("gpt_bigcode", {}),
    "gpt_bigcode_heads": ("gpt_bigcode", {"multi_query": False}),
    "gptj": ("gptj", {}),
    "codegen": ("codegen", {}),
    "cohere_head_norms": ("cohere", {"use_qk_norm": True}),
    "hunyuan_v1_dense": ("hunyuan_v1_dense", {}),
    "nanochat": ("nanochat", {}),
    "ernie4_5_moe": ("ernie4_5_moe", {}),
    "flex_olmo": ("flex_olmo", {}),
    "glm4_moe": ("glm4_moe", {}),
    "gpt_oss": ("gpt_oss", {}),
    "granitemoe": ("granitemoe", {}),
    "granitemoeshared": ("granitemoeshared", {}),
    "minicpm3": ("minicpm3", {}),
    "deepseek_v2_dense": ("deepseek_v2", {}),
    "deepseek_v2_experts": ("deepseek_v2", DEEPSEEK_V2_EXPERTS),
    "deepseek_v3_experts": ("deepseek_v3", LATENT_EXPERTS),
    "glm4_moe_lite_experts": ("glm4_moe_lite", {**LATENT_EXPERTS, "mlp_layer_types": ["dense", "sparse"]}),
    "deepseek_v3_dense": ("deepseek_v3", {}),
    "deepseek_v3_yarn": (
        "deepseek_v3",
        {
            "attention_bias": True,
            "q_lora_rank": None,
            "rope_interleave": False,
            "rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 0.9},
        },
    ),
    "glm4_moe_lite_dense": ("glm4_moe_lite", {}),
    "minimax_m2": ("minimax_m2", {}),
    "mixtral": ("mixtral", {}),
    "olmoe": ("olmoe", {}),
    "olmoe_normalised": ("olmoe", {"norm_topk_prob": True, "hidden_act": "gelu", "num_experts_per_tok": 1}),
    "phimoe": ("phimoe", {}),
    "qwen2_moe": ("qwen2_moe", {}),
    "qwen3_moe": ("qwen3_moe", {}),
    "lfm2": ("lfm2", {}),
    "lfm2_biases": ("lfm2", {"conv_bias": True, "conv_L_cache": 4}),
    "mamba2": ("mamba2", {}),
    "bamba": ("bamba", {}),
    "granitemoehybrid": ("granitemoehybrid", {}),
    "granitemoehybrid_experts": (
        "granitemoehybrid",
        {**EXPERTS, "shared_intermediate_size": 20, "position_embedding_type": "rope"},
    ),
    "qwen3_5_text": ("qwen3_5_text", {}),
    "qwen3_next": ("qwen3_next", {}),
    "falcon_h1": ("falcon_h1", {}),
    "falcon_h1_norm": ("falcon_h1", {"mamba_rms_norm": True, "ssm_multipliers": [1.0] * 5}),
    "qwen3_moe_some": ("qwen3_moe", {"mlp_only_layers": [0], "num_hidden_layers": 3, "norm_topk_prob": False}),
}
"""Named (family, overrides) pairs that between them exercise every option of the families."""


def families_of_experts() -> tuple[str, ...]:
    """The families of the registry whose tiny models have mixtures of experts."""
    return tuple(
        family
        for family in _FAMILIES
        if expectations({**COMMON, **family_options(family), "model_type": family})
        .get("recognise_router", NEVER)
        .count(2)
    )


def family_options(family: str) -> dict[str, Any]:
    """What the tiny models of `family` have in their config beside COMMON; empty if there are none."""
    return dict(_FAMILIES[family][1]) if family in _FAMILIES else {}


def variant_config(variant: str) -> PreTrainedConfig:
    """The config of one of VARIANTS."""
    family, overrides = VARIANTS[variant]
    config_class, defaults = _FAMILIES[family]
    return config_class(**{**COMMON, **defaults, **overrides})


def make_tiny(path: str | Path, family: str, *, seed: int = 0, **config_overrides: Any) -> Path:
    """Writes a float32 checkpoint of `family` (a key of _FAMILIES) with a word-level tokenizer to `path`.

    Overrides go to the config class; `dtype="bfloat16"` stores the weights rounded to that type. Returns the path.
    """
    path = Path(path)
    config_class, defaults = _FAMILIES[family]
    dtype = getattr(torch, config_overrides.pop("dtype", "float32"))
    config = config_class(**{**COMMON, **defaults, **config_overrides})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        randomise(model)
    model.to(dtype).save_pretrained(path, safe_serialization=True)
    write_tokenizer(path, config.vocab_size)
    return path


def make_variant(path: str | Path, variant: str, *, seed: int = 0, **config_overrides: Any) -> Path:
    """make_tiny for one of VARIANTS."""
    family, overrides = VARIANTS[variant]
    return make_tiny(path, family, seed=seed, **{**overrides, **config_overrides})


def randomise(model: torch.nn.Module) -> None:
    """Matrices become 8 times their init's spread; norm weights and biases get 0.3 of normal noise added, and stored
    buffers 0.1."""
    with torch.no_grad():
        for parameter in model.parameters():  # tied ones appear once
            # A constant is the norm weights of every head, or the biases of every expert.
            if parameter.dim() >= 2 and not bool((parameter == parameter.reshape(-1)[0]).all()):
                parameter.mul_(8.0)
            else:
                parameter.add_(0.3 * torch.randn_like(parameter))
        stored = model.state_dict()
        for name, buffer in model.named_buffers():  # the corrections of routers, which begin as zeros
            if name in stored and buffer.is_floating_point():
                buffer.add_(0.1 * torch.randn_like(buffer))


def class_of(path: str | Path) -> Any:
    """The class of transformers that computes a checkpoint's logits: of several parts, that which config.json names."""
    config = json.loads((Path(path) / "config.json").read_text(encoding="utf-8"))
    nested = "text_config" in config or "vision_config" in config
    return getattr(transformers, config["architectures"][0]) if nested else AutoModelForCausalLM


def load_eager(path: str | Path, dtype: str = "float32") -> torch.nn.Module:
    """The checkpoint in transformers as the oracle runs it: eager attention and experts, eval mode, on the CPU."""
    eager = {"attn_implementation": "eager", "experts_implementation": "eager"}
    return class_of(path).from_pretrained(path, dtype=getattr(torch, dtype), local_files_only=True, **eager).eval()


def write_tokenizer(path: Path, vocab_size: int) -> None:
    """Words t0 t1 ... are the ids 0 1 ...; the last id is <unk>. Plain JSON: nothing of it depends on a library."""
    words = {f"t{i}": i for i in range(vocab_size - 1)} | {"<unk>": vocab_size - 1}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "<unk>"},
    }
    (path / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "<unk>",
        "eos_token": "t2",
        "bos_token": "t1",
    }
    (path / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
