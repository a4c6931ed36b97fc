"""The survey: a tiny random model of many families of transformers, and what becomes of each; see docs/families.md.

A family works if its float32 engine gives transformers' logits on a prompt longer than the sliding window; else it must
be refused by a typed error. Anything else, a wrong number or an error of another kind, is a fault of ours.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from support.harness import EngineSteps, worst
from support.tiny_configs import LATENT
from support.tiny_models import COMMON, randomise, write_tokenizer
from tensorwright import build
from tensorwright.errors import TensorwrightError

WORKS, REFUSED, WRONG, UNTYPED = "works", "refused", "wrong", "untyped"
PROMPT = 40
SIZES: dict[str, Any] = {**COMMON, "pad_token_id": 0}
BOTH_KINDS = {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}
TWO_ROPES = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    "full_attention": {"rope_type": "default", "rope_theta": 1e5},
}
PARTIAL = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}
MOE = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
SHARED = {**MOE, "shared_expert_intermediate_size": 16}
GROUPS = {**MOE, "n_routed_experts": 4, "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1}
EAGER = {"attn_implementation": "eager", "experts_implementation": "eager"}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
HYBRID = {"layer_types": ["linear_attention", "full_attention"]}
MAMBA = {"mamba_n_heads": 4, "mamba_d_state": 12, "mamba_n_groups": 2, "mamba_chunk_size": 16}
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 8,
}

SURVEY: dict[str, dict[str, Any]] = {
    "afmoe": MOE,
    "apertus": {},
    "arcee": {"head_dim": 8},
    "axk1 with dense layers": {**LATENT, "first_k_dense_replace": 2},
    "bamba": {**MAMBA, "attn_layer_indices": [1]},
    "aria_text": {"moe_num_experts": 4, "moe_topk": 2},
    "biogpt": {},
    "bitnet": {},
    "bloom": {"n_layer": 2, "n_head": 4},
    "codegen": {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4, "n_positions": 128},
    "cohere": {"logit_scale": 0.3},
    "cohere with use_qk_norm": {"use_qk_norm": True},
    "cohere2": {"logit_scale": 0.3, "head_dim": 8, **BOTH_KINDS},
    "deepseek_v2 with dense layers": {**LATENT, "first_k_dense_replace": 2},
    "deepseek_v32 with dense layers": {**LATENT, "first_k_dense_replace": 2},
    "deepseek_v3": {"n_routed_experts": 4, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, **MOE},
    "deepseek_v3 with dense layers": {**LATENT, "first_k_dense_replace": 2},
    "cohere2_moe": MOE,
    "dots1": {**GROUPS, "n_shared_experts": 1},
    "ernie4_5": {"head_dim": 8},
    "ernie4_5_moe": {"moe_num_experts": 4, "moe_k": 2, "head_dim": 8, **MOE},
    "exaone4": BOTH_KINDS,
    "falcon": {"alibi": True},
    "falcon_h1": {**MAMBA, "mamba_d_ssm": 64},
    "flex_olmo": MOE,
    "gemma": {"head_dim": 8},
    "gemma3_text": {"head_dim": 8, "query_pre_attn_scalar": 12, "rope_parameters": TWO_ROPES, **BOTH_KINDS},
    "glm": {"head_dim": 8, **PARTIAL},
    "glm4_moe_lite with dense layers": {**LATENT, "mlp_layer_types": ["dense"] * 2},
    "glm4": {"head_dim": 8, **PARTIAL},
    "glm4_moe": {**GROUPS, "head_dim": 8},
    "gpt_bigcode": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128, "n_inner": 48},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2, "num_heads": 4, "window_size": 16},
    "gpt_oss": {**MOE, **BOTH_KINDS, "head_dim": 8, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
    "gptj": {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4, "n_positions": 128},
    "granitemoe": MOE,
    "granitemoehybrid": {**MAMBA, **MOE, **HYBRID, "shared_intermediate_size": 16},
    "granitemoe_swa": MOE,
    "granitemoeshared": {**MOE, "shared_intermediate_size": 16},
    "helium": {"head_dim": 8},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {**MOE, "head_dim": 8, "moe_topk": 2},
    "hy_v3": {**MOE, "head_dim": 8},
    "internlm3": {"head_dim": 8},
    "jetmoe": {**MOE, "kv_channels": 8},
    "jais2": {"head_dim": 8},
    "jamba": {},
    "kolibri1": {**SHARED, "head_dim": 8},
    "laguna": {**SHARED, "head_dim": 8},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "llama4_text": {**MOE, "head_dim": 8, "attention_chunk_size": 16},
    "llama with dynamic rope": {"rope_parameters": DYNAMIC},
    "mamba": {"state_size": 8},
    "mamba2": {"state_size": 8, "num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 16},
    "mellum": {**MOE, "head_dim": 8},
    "minimax": {**MOE, "head_dim": 8, "layer_types": ["full_attention", "full_attention"]},
    "minimax_m2": {**MOE, "head_dim": 8},
    "ministral": {"head_dim": 8, **BOTH_KINDS},
    "minicpm3": LATENT,
    "mixtral": {"head_dim": 8, **MOE},
    "mpt": {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 128},
    "nanochat": {},
    "nemotron": {"head_dim": 8, **PARTIAL},
    "olmo": {"clip_qkv": None},
    "olmo3": {"rope_parameters": TWO_ROPES, **BOTH_KINDS},
    "olmoe": MOE,
    "openai-gpt": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "persimmon": PARTIAL,
    "phi": PARTIAL,
    "phimoe": MOE,
    "qwen2_moe": {**MOE, "shared_expert_intermediate_size": 16},
    "qwen3_5_text": {**DELTA, **HYBRID, "head_dim": 16},
    "qwen3_moe": {**MOE, "head_dim": 8},
    "qwen3_next": {**DELTA, **HYBRID, **PARTIAL, **MOE, "head_dim": 16, "shared_expert_intermediate_size": 16},
    "qwen3_5_moe_text": {**SHARED, "head_dim": 8, "layer_types": ["full_attention", "full_attention"]},
    "recurrent_gemma": {"lru_width": 32},
    "rwkv": {},
    "seed_oss": {"head_dim": 8},
    "smollm3": {"no_rope_layers": [1, 0]},
    "solar_open": {**GROUPS, "head_dim": 8},
    "vaultgemma": {"head_dim": 8, "query_pre_attn_scalar": 12, **BOTH_KINDS},
    "xglm": {"d_model": 32, "ffn_dim": 48, "num_layers": 2, "attention_heads": 4},
    "t5": {},
    "bart": {},
    "bert": {},
}
"""model_type -> what its config says beside SIZES."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """status: works, refused, or a fault. error: the class and message of what was raised. counts: of the passes.

    bfloat16: for what works, the status of an engine in that type.
    """

    status: str
    error: str = ""
    message: str = ""
    counts: dict[str, int] = dataclasses.field(default_factory=dict)
    bfloat16: str = ""


def try_family(model_type: str, root: Path, *, bfloat16: bool = False) -> Outcome:
    """Writes a checkpoint of `model_type` below `root`, builds it and compares the engine with transformers."""
    model_dir, engine = root / "model", root / "engine"
    model = make_model(model_type, model_dir)
    try:
        built = build(model_dir, engine, dtype="float32", max_seq_len=128, accuracy="none")
    except TensorwrightError as error:
        return Outcome(REFUSED, type(error).__name__, str(error).replace(str(model_dir), "<model>"))
    except Exception as error:  # what the survey is there to find
        return Outcome(UNTYPED, type(error).__name__, str(error))
    counts = {name: count for name, count in built.config["passes"].items() if count}
    ids = np.random.default_rng(1).integers(3, 97, PROMPT).tolist()
    theirs, exact = (logits(model.to(dtype), ids) for dtype in (torch.float32, torch.float64))
    allowed = 4 * worst(theirs, exact) + float(np.abs(exact).max()) * float(np.finfo(np.float32).eps)
    off = worst(EngineSteps(engine).logits(ids), exact)
    if not off <= allowed:
        return Outcome(WRONG, "", f"logits are off by {off:.2g}, allowed {allowed:.2g}", counts)
    return Outcome(WORKS, counts=counts, bfloat16=try_bfloat16(model, root, ids) if bfloat16 else "")


def try_bfloat16(model: torch.nn.Module, root: Path, ids: list[int]) -> str:
    """As tests/end_to_end/test_parity_bfloat16.py: no further from exact logits than transformers' own bfloat16."""
    try:
        build(root / "model", root / "bfloat16", max_seq_len=128, dtype="bfloat16", accuracy="none")
    except TensorwrightError as error:
        return f"{REFUSED}: {type(error).__name__}"
    exact = model.to(torch.float64)
    with torch.no_grad():
        for parameter in exact.parameters():  # and no buffer: frequencies and scales stay whole
            parameter.copy_(parameter.bfloat16())
    theirs = type(model).from_pretrained(root / "model", dtype=torch.bfloat16, **EAGER).eval()
    theirs, exact = logits(theirs, ids), logits(exact, ids)
    ours = EngineSteps(root / "bfloat16").logits(ids)
    return WORKS if np.linalg.norm(ours - exact) <= np.linalg.norm(theirs - exact) else WRONG


def survey_config(model_type: str) -> Any:
    """The config of a key of SURVEY."""
    config_class = CONFIG_MAPPING[model_type.partition(" ")[0]]
    known = set(config_class().to_dict()) | set(config_class.attribute_map)
    options = {k: v for k, v in SURVEY[model_type].items() if k not in MOE or k in known}
    return config_class(**{**SIZES, **options})


def make_model(model_type: str, path: Path) -> torch.nn.Module:
    """A random model, and its checkpoint at `path`."""
    config = survey_config(model_type)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model = from_config(config)
        randomise(model)
    model.save_pretrained(path, safe_serialization=True)
    write_tokenizer(path, SIZES["vocab_size"])
    return model.eval()


def from_config(config: Any) -> torch.nn.Module:
    """The causal language model; for what has none, an encoder-decoder or bare model."""
    from transformers import AutoModel, AutoModelForSeq2SeqLM

    autos = (AutoModelForSeq2SeqLM,) if config.is_encoder_decoder else (AutoModelForCausalLM, AutoModel)
    for auto in autos:
        if type(config) in auto._model_mapping:
            return auto.from_config(config, dtype=torch.float32, **EAGER)
    raise AssertionError(f"{config.model_type} has no model")


def logits(model: torch.nn.Module, ids: list[int]) -> np.ndarray:
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0].double().numpy()
