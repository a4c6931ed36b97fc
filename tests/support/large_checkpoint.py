"""A checkpoint of a real shape whose weights are holes in a sparse file: large to a build, nothing to the disk."""

from __future__ import annotations

import json
import struct
from math import prod
from pathlib import Path
from typing import Any

WIDE_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "bfloat16",
    "vocab_size": 64_128,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 2,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""As wide as a Llama of 1 B parameters, with 2 layers: 506 MB in bfloat16, 263 MB of them the embedding table."""


WIDE_MIXTURE = {
    **WIDE_LLAMA,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "vocab_size": 4096,
    "num_hidden_layers": 1,
    "moe_intermediate_size": 768,
    "num_experts": 32,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
}
"""One layer as wide as those of Qwen3-30B-A3B, with a quarter of its experts: 302 MB of them in bfloat16."""


def decoder_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Tensor names and shapes of a tied Qwen3-MoE, or of a tied Llama without biases."""
    if "num_experts" not in config:
        return llama_shapes(config)
    hidden, inner, head = config["hidden_size"], config["moe_intermediate_size"], config["head_dim"]
    shapes = {name: shape for name, shape in llama_shapes(config).items() if ".mlp." not in name}
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        shapes |= {f"{layer}.self_attn.{norm}.weight": (head,) for norm in ("q_norm", "k_norm")}
        shapes[f"{layer}.mlp.gate.weight"] = (config["num_experts"], hidden)
        for expert in range(config["num_experts"]):
            for name, shape in (("gate", (inner, hidden)), ("up", (inner, hidden)), ("down", (hidden, inner))):
                shapes[f"{layer}.mlp.experts.{expert}.{name}_proj.weight"] = shape
    return shapes


def llama_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Tensor names and shapes of a tied Llama without biases."""
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        for name, shape in (
            ("input_layernorm", (hidden,)), ("post_attention_layernorm", (hidden,)), ("self_attn.q_proj", (q, hidden)),
            ("self_attn.k_proj", (kv, hidden)), ("self_attn.v_proj", (kv, hidden)), ("self_attn.o_proj", (hidden, q)),
            ("mlp.gate_proj", (inner, hidden)), ("mlp.up_proj", (inner, hidden)), ("mlp.down_proj", (hidden, inner)),
        ):  # fmt: skip
            shapes[f"{layer}.{name}.weight"] = shape
    return {**shapes, "model.norm.weight": (hidden,)}


def write_sparse_checkpoint(path: Path, config: dict[str, Any]) -> int:
    """Writes the directory; all weights read as zero. Returns the bytes of the largest tensor."""
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config))
    header, end, shapes = {}, 0, decoder_shapes(config)
    for name, shape in shapes.items():
        begin, end = end, end + 2 * prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with (path / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    return max(2 * prod(shape) for shape in shapes.values())
