"""Configs after those of published models, shrunk in size, and tiny random checkpoints of them.

`published_configs/` has a file for each model: where it is published, and a config.json in the words of the
transformers that wrote it. They are written from what is known of the models; minor fields may differ from the hub's.
Only sizes are changed here: counts, widths, lengths, and token ids, which must be in the vocabulary. Everything else,
known to a family or not, stays.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM

from support.tiny_models import randomise, write_tokenizer

FOLDER = Path(__file__).parent / "published_configs"

HEAD_DIM, HEADS, INTERMEDIATE, VOCABULARY, WINDOW = 16, 4, 80, 96, 16
POSITIONS, POSITIONS_BEFORE_SCALING = 128, 32
"""Of models with a table of positions, or with factors for each frequency. Others keep theirs, which cost nothing."""

LAYERS = ("num_hidden_layers", "n_layer")
BY_LAYER = ("layer_types", "no_rope_layers")
BY_FREQUENCY = ("short_factor", "long_factor")


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


def make_published(name: str, path: Path, **changes: Any) -> torch.nn.Module:
    """Writes a tiny checkpoint with the shrunk config.json of `name`, and `changes` to it, to `path`.

    Returns the model in float32, with weights rounded to bfloat16 as they are stored, whatever type config.json names.
    """
    config = {**shrink(published_config(name)), **changes}
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model = AutoModelForCausalLM.from_config(
            AutoConfig.from_pretrained(path), dtype=torch.float32, attn_implementation="eager"
        )
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
    pattern = config.get("sliding_window_pattern")
    return (pattern if isinstance(pattern, int) else 2), 0


def _shrunk(key: str, value: Any, config: dict[str, Any]) -> Any:
    """The value of one key. The rules keep what a config says: of more heads than key heads, of a window or none."""
    if value is None:
        return None
    if key.endswith("_token_id"):
        return [i % VOCABULARY for i in value] if isinstance(value, list) else value % VOCABULARY
    sizes = {
        "vocab_size": VOCABULARY, "intermediate_size": INTERMEDIATE, "head_dim": HEAD_DIM,
        "num_attention_heads": HEADS, "n_head": HEADS, "n_embd": HEADS * HEAD_DIM,
        "n_positions": POSITIONS, "n_ctx": POSITIONS,
    }  # fmt: skip
    if key in sizes:
        return sizes[key]
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
