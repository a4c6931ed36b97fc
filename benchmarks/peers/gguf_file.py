"""Writes a checkpoint as a GGUF file of 16-bit floats, as llama.cpp's own converter would.

That converter reads checkpoints whole from the hub's form; here only the architectures of benchmarks/shapes.py are
known. Matrices become float16, vectors and routers float32.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WHOLE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "model.embedding_norm.weight": "token_embd_norm.weight",
}
ATTENTION = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
MLP = {"mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
LFM2 = {
    "self_attn.out_proj": "attn_output",
    "self_attn.q_layernorm": "attn_q_norm",
    "self_attn.k_layernorm": "attn_k_norm",
    "operator_norm": "attn_norm",
    "ffn_norm": "ffn_norm",
    "conv.in_proj": "shortconv.in_proj",
    "conv.conv": "shortconv.conv",
    "conv.out_proj": "shortconv.out_proj",
    "feed_forward.w1": "ffn_gate",
    "feed_forward.w2": "ffn_down",
    "feed_forward.w3": "ffn_up",
}
DEEPSEEK2 = {
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "mlp.gate": "ffn_gate_inp",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
}
LATENT_UP = ".self_attn.kv_b_proj.weight"
"""The matrix that makes the keys and the values of all heads from a latent row; llama.cpp wants both apart."""
ROUTER = "ffn_gate_inp"
EXPERT = re.compile(r"(.*)\.mlp\.experts\.(\d+)\.(gate|up|down)_proj\.weight")
"""The name of one matrix of one expert, where a checkpoint holds each on its own."""


@dataclass(frozen=True)
class Architecture:
    """What llama.cpp calls a family, and how it wants its weights.

    name: in the file. tensors: parts of layers, ours to theirs. halves: whether rows of q and k that turn together must
    be side by side. keys: more keys of the file, by the name of the config's field. facts: more keys of the file, that
    are computed from the config.
    """

    name: str
    tensors: dict[str, str]
    halves: bool = False
    keys: dict[str, str] = field(default_factory=dict)
    facts: Callable[[dict[str, Any]], dict[str, int]] = lambda config: {}


EXPERT_KEYS = {"num_local_experts": "expert_count", "num_experts_per_tok": "expert_used_count"}
GRANITE_KEYS = EXPERT_KEYS | {
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "attention_multiplier": "attention.scale",
    "logits_scaling": "logit_scale",
}
GRANITE_PARTS = {
    "block_sparse_moe.router.layer": ROUTER,
    "block_sparse_moe.output_linear": "ffn_down_exps",
}
GRANITE_GATE_AND_UP = ".block_sparse_moe.input_linear.weight"
LATENT_KEYS = {
    "kv_lora_rank": "attention.kv_lora_rank",
    "qk_rope_head_dim": "rope.dimension_count",
    "first_k_dense_replace": "leading_dense_block_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "n_routed_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "n_shared_experts": "expert_shared_count",
    "routed_scaling_factor": "expert_weights_scale",
}


def latent_facts(config: dict[str, Any]) -> dict[str, int]:
    """Returns the widths of latent attention: of the one row that is kept, and of a head that is made of it."""
    rank, turning = config["kv_lora_rank"], config["qk_rope_head_dim"]
    return {
        "attention.key_length": rank + turning,
        "attention.value_length": rank,
        "attention.key_length_mla": config["qk_nope_head_dim"] + turning,
        "attention.value_length_mla": config["v_head_dim"],
        "expert_gating_func": 1,  # softmax
    }


ARCHITECTURES = {
    "deepseek_v2": Architecture("deepseek2", ATTENTION | MLP | DEEPSEEK2, keys=LATENT_KEYS, facts=latent_facts),
    "qwen2": Architecture("qwen2", ATTENTION | MLP),
    "llama": Architecture("llama", ATTENTION | MLP, halves=True),
    "qwen3_moe": Architecture(
        "qwen3moe",
        ATTENTION | {"mlp.gate": ROUTER},
        keys=EXPERT_KEYS | {"moe_intermediate_size": "expert_feed_forward_length"},
    ),
    "olmoe": Architecture("olmoe", ATTENTION | {"mlp.gate": ROUTER}, keys=EXPERT_KEYS),
    "lfm2": Architecture("lfm2", ATTENTION | LFM2, keys={"conv_L_cache": "shortconv.l_cache"}),
    "granitemoe": Architecture("granitemoe", ATTENTION | GRANITE_PARTS, halves=True, keys=GRANITE_KEYS),
}


def write(checkpoint: Path, out: Path) -> None:
    """Writes the file. Raises KeyError for an architecture or a tensor that is not in the tables."""
    import gguf
    import numpy as np

    config = json.loads((checkpoint / "config.json").read_text())
    architecture = ARCHITECTURES[config["model_type"]]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    latent = "kv_lora_rank" in config
    kinds = config.get("layer_types") or []
    rope, head_dim = config["rope_parameters"], config.get("head_dim") or config["hidden_size"] // heads
    writer = gguf.GGUFWriter(out, architecture.name, use_temp_file=True)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(feed_forward_length(config))
    writer.add_head_count(heads)
    kept_heads = 1 if latent else kv_heads
    writer.add_head_count_kv([0 if kind == "conv" else kv_heads for kind in kinds] if "conv" in kinds else kept_heads)
    if not latent:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps" if "rms_norm_eps" in config else "norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(1)
    writer.add_tokenizer_model("no_vocab")
    for name, key in architecture.keys.items():
        add = writer.add_uint32 if isinstance(config[name], int) else writer.add_float32
        add(f"{architecture.name}.{key}", config[name])
    for key, number in architecture.facts(config).items():
        writer.add_uint32(f"{architecture.name}.{key}", number)
    if architecture.halves:
        writer.add_rope_dimension_count(head_dim)
    if rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", rope_factors(rope, head_dim))
    for name, array in tensors(checkpoint, architecture, config):
        if architecture.halves and (".attn_q." in name or ".attn_k." in name):
            array = halves_to_pairs(array, heads if ".attn_q." in name else kv_heads)
        if ".shortconv.conv." in name:
            array = array.squeeze(1)  # a row of weights for each channel
        wide = array.ndim == 1 or ROUTER in name or ".shortconv.conv." in name
        writer.add_tensor(name, array.astype(np.float32 if wide else np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def feed_forward_length(config: dict[str, Any]) -> int:
    """Returns the width of the MLP. LFM2's config names the width from which it is computed."""
    width = int(config["intermediate_size"])
    if not config.get("block_auto_adjust_ff_dim"):
        return width
    width, multiple = int(2 * width / 3 * config["block_ffn_dim_multiplier"]), config["block_multiple_of"]
    return -(-width // multiple) * multiple


def tensors(checkpoint: Path, architecture: Architecture, config: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields each tensor of the file in float32, by its name there. The matrices of a layer's experts are stacked."""
    import numpy as np

    with contextlib.ExitStack() as stack:
        place = stored_tensors(checkpoint, stack)

        def read(name: str) -> Any:
            return place[name].get_tensor(name).float().numpy()

        experts: dict[str, list[str]] = {}
        for name in place:
            if match := EXPERT.fullmatch(name):
                layer, _, part = match.groups()
                experts.setdefault(f"blk.{layer.split('.')[2]}.ffn_{part}_exps.weight", []).append(name)
            elif name.endswith(GRANITE_GATE_AND_UP):
                gate, up = np.split(read(name), 2, axis=1)
                yield f"blk.{name.split('.')[2]}.ffn_gate_exps.weight", gate
                yield f"blk.{name.split('.')[2]}.ffn_up_exps.weight", up
            elif name.endswith(LATENT_UP):
                keys, values = keys_and_values(read(name), config)
                yield f"blk.{name.split('.')[2]}.attn_k_b.weight", keys
                yield f"blk.{name.split('.')[2]}.attn_v_b.weight", values
            else:
                yield gguf_name(name, architecture), read(name)
        for name, parts in experts.items():
            in_order = sorted(parts, key=lambda part: int(EXPERT.fullmatch(part)[2]))  # type: ignore[index]
            yield name, np.stack([read(part).astype(np.float16) for part in in_order])


def stored_tensors(checkpoint: Path, stack: contextlib.ExitStack) -> dict[str, Any]:
    """Returns the open file of each tensor, by the tensor's name. The files stay open as long as `stack`."""
    from safetensors import safe_open

    files = [stack.enter_context(safe_open(file, "pt")) for file in sorted(checkpoint.glob("*.safetensors"))]
    return {name: file for file in files for name in file.keys()}  # noqa: SIM118 - this is no dict


def keys_and_values(weight: Any, config: dict[str, Any]) -> tuple[Any, Any]:
    """Cuts the matrix of LATENT_UP into keys, [heads, rank, width of k], and values, [heads, width of v, rank]."""
    width = config["qk_nope_head_dim"]
    heads = weight.reshape(config["num_attention_heads"], width + config["v_head_dim"], config["kv_lora_rank"])
    return heads[:, :width].swapaxes(1, 2), heads[:, width:]


def gguf_name(name: str, architecture: Architecture) -> str:
    """Maps "model.layers.3.mlp.up_proj.weight" to "blk.3.ffn_up.weight"."""
    if name in WHOLE:
        return WHOLE[name]
    parts = name.split(".")
    return f"blk.{parts[2]}.{architecture.tensors['.'.join(parts[3:-1])]}.{parts[-1]}"


def rope_factors(rope: dict[str, Any], head_dim: int) -> Any:
    """Returns Llama 3's scaling of frequencies in llama.cpp's form: a divisor for each frequency."""
    import numpy as np

    inverse = rope["rope_theta"] ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    length, low, high = rope["original_max_position_embeddings"], rope["low_freq_factor"], rope["high_freq_factor"]
    smooth = np.clip((length * inverse / (2 * np.pi) - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / rope["factor"] + smooth)).astype(np.float32)


def halves_to_pairs(weight: Any, heads: int) -> Any:
    """Returns the rows of q or k in the order of llama.cpp's Llama: those that turn together side by side."""
    rows = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return rows.swapaxes(1, 2).reshape(weight.shape)


def bytes_of_a_token(file: Path) -> int:
    """Returns the bytes of the weights that one token reads: of the experts, those that it takes."""
    import gguf

    reader = gguf.GGUFReader(file)
    sizes = {t.name: int(t.n_bytes) for t in reader.tensors}
    if "output.weight" in sizes:  # otherwise the embedding is also the head
        del sizes["token_embd.weight"]
    facts = {key.rpartition(".")[2]: value for key, value in reader.fields.items()}
    taken = 1.0
    if "expert_count" in facts:
        taken = int(facts["expert_used_count"].contents()) / int(facts["expert_count"].contents())
    return round(sum(size * (taken if "_exps." in name else 1.0) for name, size in sizes.items()))
