"""Random tiny checkpoints of models that read images beside text, and of decoders with a layer that is left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

from support.tiny_configs import COMMON, GEMMA3, LLAMA3_ROPE, LLAMA4
from support.tiny_models import make_tiny, randomise, write_tokenizer

_IMAGES = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
_SQUARE = {**_IMAGES, "image_size": 16, "patch_size": 8}
_QWEN_IMAGES = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 32}
_TEXT = {**COMMON, "pad_token_id": 0}


def _mrope(*sections: int) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": 1e4, "mrope_section": list(sections)}


NESTED: dict[str, tuple[str, dict[str, Any]]] = {
    "nested gemma3": (
        "Gemma3",
        {
            "text_config": {**_TEXT, **GEMMA3},
            "vision_config": _SQUARE,
            "mm_tokens_per_image": 4,
            "image_token_id": 90,
        },
    ),
    "nested mistral3": (
        "Mistral3",
        {
            "text_config": {**_TEXT, "model_type": "mistral", "head_dim": 8, "sliding_window": 16},
            "vision_config": {**_SQUARE, "model_type": "pixtral"},
            "tie_word_embeddings": False,
        },
    ),
    "nested llava": (
        "Llava",
        {
            "text_config": {**_TEXT, "model_type": "llama"},
            "vision_config": {**_SQUARE, "model_type": "clip_vision_model", "num_hidden_layers": 2},
        },
    ),
    "nested internvl": (
        "InternVL",
        {
            "text_config": {**_TEXT, "model_type": "qwen2", "tie_word_embeddings": True},
            "vision_config": {**_SQUARE, "image_size": [16, 16], "patch_size": [8, 8]},
            "tie_word_embeddings": True,
        },
    ),
    "nested qwen2_vl": (
        "Qwen2VL",
        {
            "text_config": {**_TEXT, "rope_parameters": _mrope(1, 1, 2)},
            "vision_config": {"depth": 1, "embed_dim": 16, "num_heads": 2, "hidden_size": 32},
        },
    ),
    "nested qwen2_5_vl": (
        "Qwen2_5_VL",
        {
            "text_config": {**_TEXT, "rope_parameters": _mrope(1, 1, 2)},
            "vision_config": {**_QWEN_IMAGES, "fullatt_block_indexes": [0]},
        },
    ),
    "nested qwen3_vl": (
        "Qwen3VL",
        {
            "text_config": {**_TEXT, "head_dim": 12, "rope_parameters": _mrope(2, 2, 2)},
            "vision_config": {**_QWEN_IMAGES, "num_position_embeddings": 16, "deepstack_visual_indexes": [0]},
        },
    ),
    "nested gemma4": (
        "Gemma4",
        {
            "text_config": {
                **_TEXT,
                "head_dim": 8,
                "global_head_dim": 16,
                "sliding_window": 16,
                "hidden_size_per_layer_input": 0,
                "num_kv_shared_layers": 0,
                "layer_types": ["sliding_attention", "full_attention"],
                "tie_word_embeddings": True,
            },
            "vision_config": {**_IMAGES, "patch_size": 8, "head_dim": 8, "num_key_value_heads": 2},
            "image_token_id": 99,
            "video_token_id": 98,
            "audio_token_id": 97,
        },
    ),
    "nested llama4": (
        "Llama4",
        {
            "text_config": {**_TEXT, **LLAMA4, "attention_chunk_size": 16, "rope_parameters": LLAMA3_ROPE},
            "vision_config": {
                **_SQUARE,
                "intermediate_size": 64,
                "vision_output_dim": 16,
                "projector_input_dim": 16,
                "projector_output_dim": 16,
            },
            "boi_token_index": 90,
            "eoi_token_index": 91,
            "image_token_index": 92,
        },
    ),
    "nested mllama": (
        "Mllama",
        {
            "text_config": {
                **_TEXT,
                "num_hidden_layers": 3,
                "cross_attention_layers": [1],
                "rope_parameters": LLAMA3_ROPE,
            },
            "vision_config": {
                **_SQUARE,
                "num_global_layers": 1,
                "attention_heads": 2,
                "vision_output_dim": 32,
                "intermediate_layers_indices": [0],
            },
            "image_token_index": 101,
        },
    ),
}
"""The name of a variant -> the beginning of the names of its classes, and its config."""


def make_nested(path: str | Path, variant: str, *, seed: int = 0, dtype: str = "float32", **changes: Any) -> Path:
    """Writes a checkpoint of a model of NESTED with a word-level tokenizer to `path`. Returns the path.

    changes: values for the config of the text part. dtype: what the weights are rounded to.
    """
    path = Path(path)
    prefix, options = NESTED[variant]
    options = {**options, "text_config": {**options["text_config"], **changes}}
    config = getattr(transformers, f"{prefix}Config")(**options)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = getattr(transformers, f"{prefix}ForConditionalGeneration")(config)
        randomise(model)
    model.to(getattr(torch, dtype)).save_pretrained(path, safe_serialization=True)
    write_tokenizer(path, COMMON["vocab_size"])
    return path


def make_predicting(path: str | Path, *, declared: int = 1, dtype: str = "float32", seed: int = 0) -> Path:
    """Writes a llama of two layers, with a third one that predicts further tokens, and tensors that are called mtp.

    declared: how many such layers config.json says that there are.
    """
    path = make_tiny(path, "llama", num_hidden_layers=3, dtype=dtype, seed=seed)
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    config |= {"num_hidden_layers": 2, **({"num_nextn_predict_layers": declared} if declared else {})}
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    tensors = load_file(path / "model.safetensors")
    norm = tensors["model.norm.weight"]
    tensors |= {"model.layers.2.eh_proj.weight": torch.cat([norm, norm])[None], "mtp.norm.weight": norm.clone()}
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return path
