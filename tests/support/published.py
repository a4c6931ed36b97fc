"""A tiny checkpoint as hubs have it: config.json in the spelling of transformers 4.x, which most of them are saved in.

`torch_dtype`, `rope_theta` and `rope_scaling` at the top (or the family's own words for them), `sliding_window_pattern`
in place of `layer_types`. It says the same as the config.json that transformers 5 writes.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from transformers import CONFIG_MAPPING

RENAMED = {
    "gpt_neox": {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"},
}
"""model_type -> what transformers 4.x calls parts of `rope_parameters`."""

BY_TYPE = ("linear", "yarn", "longrope")
"""Rope types that were published with the key `type`, before `rope_type`."""

FLAT_TEXT = ("qwen2_vl", "qwen2_5_vl")
"""Families of several parts whose text part stood at the top of config.json."""

DERIVED_LAYERS = ("gemma2", "smollm3", "qwen2", "qwen3")
"""Families whose `layer_types` transformers 4.x derived from other numbers of the config."""


def publish(checkpoint: Path, out: Path, dtype: str | None = None) -> Path:
    """Writes a copy of `checkpoint` to `out`, weights linked, with config.json in 4.x spelling. Returns `out`.

    dtype: what config.json then marks it with, whatever the weights are stored in.
    """
    shutil.copytree(checkpoint, out, copy_function=os.link)
    (out / "config.json").unlink()
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    config["dtype"] = dtype or config["dtype"]
    (out / "config.json").write_text(json.dumps(legacy_config(config)), encoding="utf-8")
    return out


def legacy_config(config: dict[str, Any]) -> dict[str, Any]:
    """`config` in the words of transformers 4.x; what it says stays the same."""
    if "text_config" in config:
        return _legacy_nested(config)
    config = {**config, "transformers_version": "4.49.0"}
    config["torch_dtype"] = config.pop("dtype")
    family = config["model_type"]
    rope = config.pop("rope_parameters", None) or {}
    if family == "gemma3_text":
        config["sliding_window_pattern"] = config.pop("layer_types").index("full_attention") + 1
        config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        rope = rope["full_attention"]
    elif family in (
        "olmo3",
        "gemma4_text",
        "gemma4_unified_text",
        "olmo_hybrid",
        "qwen3_5_moe_text",
        "qwen3_5_text",
    ):  # a `rope_theta` at the top is read for some of the layers only, or none
        config["rope_parameters"], rope = rope, {}
    elif family in DERIVED_LAYERS:
        config.pop("layer_types", None)
    names = RENAMED.get(family, {})
    for key in ("rope_theta", "partial_rotary_factor"):
        if key in rope:
            config[names.get(key, key)] = rope[key]
    if rope:
        config["rope_scaling"] = _rope_scaling(rope, config)
    return config


def _legacy_nested(config: dict[str, Any]) -> dict[str, Any]:
    """The config of a model with a text part, which is written without the defaults of its class."""
    config = {**config, "transformers_version": "4.49.0"}
    config["torch_dtype"] = config.pop("dtype")
    text = legacy_config({"dtype": config["torch_dtype"], **config.pop("text_config")})
    defaults = CONFIG_MAPPING[text["model_type"]]().to_dict()
    text = {key: value for key, value in text.items() if key == "model_type" or value != defaults.get(key)}
    if config["model_type"] in FLAT_TEXT:
        return {**text, **config}
    return {**config, "text_config": text}


def _rope_scaling(rope: dict[str, Any], config: dict[str, Any]) -> dict[str, Any] | None:
    """None for rotary embeddings that nothing scales."""
    if "mrope_section" in rope:
        interleaved = {"rope_type": "default", "mrope_interleaved": True}
        spelled = interleaved if config["model_type"] == "qwen3_vl_text" else {"type": "mrope"}
        return {**spelled, "mrope_section": rope["mrope_section"]}
    kind = rope.get("rope_type", "default")
    if kind == "default":
        return None
    scaling = {key: value for key, value in rope.items() if key not in ("rope_type", "rope_theta")}
    scaling.pop("partial_rotary_factor", None)
    if "original_max_position_embeddings" in config:
        scaling.pop("original_max_position_embeddings", None)  # beside it, as Phi-3 has it
    layered = config["model_type"] == "gemma3_text"  # younger than `type`
    return {"type" if kind in BY_TYPE and not layered else "rope_type": kind, **scaling}
