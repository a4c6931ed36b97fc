"""Configs after those of published models, shrunk in size, and tiny random checkpoints of them.

`published_configs/` has a file for each model: where it is published, and a config.json in the words of the
transformers that wrote it. "read" says where a public copy of the config was read, which it equals but for what
"differs" says. A file without it is written from what is known of the model; minor fields may differ from the hub's.
Only sizes are changed here: counts, widths, lengths, and token ids, which must be in the vocabulary. Everything else,
known to a family or not, stays; but the weights are stored in bfloat16, so no `quantization_config` is.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM

from support.tiny_models import randomise, write_tokenizer

EAGER = {"attn_implementation": "eager", "experts_implementation": "eager"}
"""The forms of transformers that compute in float64 too."""

FOLDER = Path(__file__).parent / "published_configs"

HEAD_DIM, HEADS, INTERMEDIATE, VOCABULARY, WINDOW = 16, 4, 80, 96, 16
EXPERTS, TAKEN, EXPERT_WIDTH = 16, 4, 24
POSITIONS, POSITIONS_BEFORE_SCALING = 128, 32
"""Of models with a table of positions, or with factors for each frequency. Others keep theirs, which cost nothing."""

LAYERS = ("num_hidden_layers", "n_layer")
BY_LAYER = ("layer_types", "no_rope_layers")
BY_FREQUENCY = ("short_factor", "long_factor")

SHRUNK = {
    "vocab_size": VOCABULARY, "intermediate_size": INTERMEDIATE, "num_attention_heads": HEADS, "n_head": HEADS,
    "n_embd": HEADS * HEAD_DIM, "n_positions": POSITIONS, "n_ctx": POSITIONS,
    "moe_intermediate_size": EXPERT_WIDTH, "shared_expert_intermediate_size": 32, "first_k_dense_replace": 1,
    "kv_lora_rank": 32, "q_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12,
    "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 12, "rotary_dim": HEAD_DIM // 2,
    "mamba_d_ssm": 96, "mamba_n_heads": 6, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_chunk_size": 16,
}  # fmt: skip
"""Sizes that are the same for all models. Others depend on the model."""

AT_MOST = {
    "num_experts": EXPERTS, "n_routed_experts": EXPERTS, "num_local_experts": EXPERTS,
    "num_experts_per_tok": TAKEN, "experts_per_token": TAKEN,
}  # fmt: skip


def where_read(name: str) -> str | None:
    """Where a public copy of a config was read, if one was."""
    where: str | None = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8")).get("read")
    return where


def published_config(name: str) -> dict[str, Any]:
    """The config of a published model, before it is shrunk."""
    config: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))["config"]
    return config


PUBLISHED = tuple(
    name
    for name in sorted(path.stem for path in FOLDER.glob("*.json"))
    if published_config(name)["model_type"] in CONFIG_MAPPING
)
"""The models whose family the installed transformers has."""


def shrink(config: dict[str, Any]) -> dict[str, Any]:
    """`config` with few and narrow layers: as many as show each kind of layer once."""
    layers, first = _layers(config)
    small = {key: _shrunk(key, value, config) for key, value in config.items()}
    small |= {key: layers for key in LAYERS if key in config}
    small |= {key: config[key][first : first + layers] for key in BY_LAYER if config.get(key)}
    if _has_factors(config):
        scaling, count = config["rope_scaling"], int(HEAD_DIM * config.get("partial_rotary_factor", 1.0)) // 2
        small["rope_scaling"] = {**scaling, **{key: scaling[key][:count] for key in BY_FREQUENCY}}
    return small


SEEDS = {"MiniMax-M2.5": 8}
"""The seed of the weights, where it is not 5: weights for which two experts score so nearly the same that bfloat16
chooses the other one tell nothing about the rest."""


def make_published(name: str, path: Path, **changes: Any) -> torch.nn.Module:
    """Writes a tiny checkpoint with the shrunk config.json of `name`, and `changes` to it, to `path`.

    Returns the model in float32, with weights rounded to bfloat16 as they are stored, whatever type config.json names.
    """
    config = {**shrink(published_config(name)), **changes}
    config.pop("quantization_config", None)
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEEDS.get(name, 5))
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path), dtype=torch.float32, **EAGER)
        randomise(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16())
    model.save_pretrained(path, safe_serialization=True)
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")  # not as transformers wrote it anew
    write_tokenizer(path, VOCABULARY)
    return model.eval()


def _layers(config: dict[str, Any]) -> tuple[int, int]:
    """How many layers show every kind, and the first of them."""
    listed = next((config[key] for key in BY_LAYER if len(set(config.get(key) or ())) > 1), None)
    if listed is not None:
        return 2, next(i for i in range(len(listed)) if listed[i] != listed[i + 1])
    pattern = config.get("sliding_window_pattern", config.get("full_attention_interval"))
    return (pattern if isinstance(pattern, int) else 2), 0


def _shrunk(key: str, value: Any, config: dict[str, Any]) -> Any:
    """The value of one key. The rules keep what a config says: of more heads than key heads, of a window or none."""
    if value is None:
        return None
    if key.endswith("_token_id"):
        return [i % VOCABULARY for i in value] if isinstance(value, list) else value % VOCABULARY
    if key in SHRUNK:
        return SHRUNK[key]
    if key in AT_MOST:
        return min(value, AT_MOST[key])
    if key == "head_dim":  # of latent attention, the part of a head that is turned
        return SHRUNK["qk_rope_head_dim"] if "qk_rope_head_dim" in config else HEAD_DIM
    if key == "linear_num_value_heads":
        return value // config["linear_num_key_heads"] * SHRUNK["linear_num_key_heads"]
    heads, layers = (config.get(of) or config.get(older) for of, older in (("num_attention_heads", "n_head"), LAYERS))
    if key == "hidden_size":
        square = config.get("head_dim", value // heads) * heads == value
        return HEADS * HEAD_DIM if square else HEADS * HEAD_DIM - HEAD_DIM
    if key == "num_key_value_heads":
        return HEADS if value == heads else 1 if value == 1 else HEADS // 2
    if key in ("sliding_window", "sliding_window_size"):
        return value if value >= config["max_position_embeddings"] else WINDOW
    if key == "max_window_layers":
        return value if value >= layers else 1
    if key == "max_position_embeddings" and _has_factors(config):
        return POSITIONS if value > config["original_max_position_embeddings"] else POSITIONS_BEFORE_SCALING
    if key == "original_max_position_embeddings" and _has_factors(config):
        return POSITIONS_BEFORE_SCALING
    return value


def _has_factors(config: dict[str, Any]) -> bool:
    return bool(set(BY_FREQUENCY) & set(config.get("rope_scaling") or ()))
