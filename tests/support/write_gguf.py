"""Writes the GGUF files of tests/models/gguf_files with the `gguf` package, as llama.cpp's converter would.

    python tests/support/write_gguf.py tests/models/gguf_files

needs gguf 0.19 and accelerate beside torch and transformers. The tests need neither: beside each file lies a JSON file
with what transformers reads from it: the digest of every weight in float32, the config, and the ids of some texts.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode
from transformers.integrations.ggml import GGUF_CONFIG_MAPPING

# transformers reads these of no file, and takes the sizes of one published model.
for _name in ("qwen2_moe", "qwen3_moe"):
    GGUF_CONFIG_MAPPING[_name]["expert_feed_forward_length"] = "moe_intermediate_size"
    GGUF_CONFIG_MAPPING[_name]["expert_shared_feed_forward_length"] = "shared_expert_intermediate_size"
GGUF_CONFIG_MAPPING["gpt2"]["context_length"] = "n_positions"
GGUF_CONFIG_MAPPING["gpt2"]["feed_forward_length"] = "n_inner"

SIZES = {
    "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 32, "max_position_embeddings": 64,
    "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": None, "rms_norm_eps": 1e-5, "initializer_range": 0.1,
}  # fmt: skip
TEXTS = ["", "ab", " the a", "bathe\n\n", "naïve 日", "a<|end|>b"]
TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}<|end|>{% endfor %}"


@dataclass
class Made:
    """One file. kinds: the types of matrices, in turn. numbers: more metadata, without the architecture."""

    architecture: str
    model_type: str
    sizes: dict[str, Any] = field(default_factory=dict)
    kinds: tuple[Kind, ...] = (Kind.F16,)
    numbers: dict[str, Any] = field(default_factory=dict)
    change: Callable[[str, np.ndarray, Any], np.ndarray] = lambda name, values, config: values
    text: str = ""
    tensors: dict[str, np.ndarray] = field(default_factory=dict)


def pairs(name: str, values: np.ndarray, config: Any) -> np.ndarray:
    """Llama's rows of q and k: those that turn together become neighbours (convert_hf_to_gguf.py, permute)."""
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(name.split(".")[-2])
    if heads is None:
        return values
    return values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def one_more(name: str, values: np.ndarray, config: Any) -> np.ndarray:
    return values + 1 if name.endswith("norm.weight") else values


def conv1d(name: str, values: np.ndarray, config: Any) -> np.ndarray:
    parts = ("attn_qkv.weight", "attn_output.weight", "ffn_up.weight", "ffn_down.weight")
    return np.ascontiguousarray(values.T) if name.endswith(parts) else values


def flat(name: str, values: np.ndarray, config: Any) -> np.ndarray:
    """Kernels of convolutions and the gate of a shared expert lose a dimension of size one."""
    return values.squeeze() if "shortconv.conv" in name or "ffn_gate_inp_shexp" in name else values


def model_of(made: Made) -> Any:
    """A decoder with weights of several sizes, so that groups differ."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(made.model_type, **{**SIZES, **made.sizes})
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= torch.exp(0.5 * torch.randn(parameter.shape))
            parameter += 0.05 * torch.randn(parameter.shape)
    return model.float().eval()


def random_blocks(shape: tuple[int, ...], kind: Kind, seed: int) -> np.ndarray:
    """Blocks of a type that the package only decodes: random bytes, with halves of about 0.01."""
    size, count = gguf.GGML_QUANT_SIZES[kind]
    draw = np.random.default_rng(seed)
    blocks = draw.integers(0, 256, (shape[0], shape[1] // size, count), dtype=np.uint8)
    places = {
        Kind.Q2_K: (80, 82),
        Kind.Q3_K: (108,),
        Kind.Q4_K: (0, 2),
        Kind.Q5_K: (0, 2),
        Kind.Q6_K: (208,),
        Kind.IQ4_NL: (0,),
    }
    for place in places[kind]:
        halves = (0.01 * draw.standard_normal(blocks.shape[:2])).astype(np.float16)
        blocks[..., place : place + 2] = halves[..., None].view(np.uint8)
    return blocks.reshape(shape[0], -1)


def stored(values: np.ndarray, kind: Kind, seed: int) -> np.ndarray:
    try:
        return gguf.quants.quantize(values, kind)
    except NotImplementedError:
        return random_blocks(values.shape, kind, seed)


def write(out: Path, name: str, made: Made) -> None:
    model = model_of(made)
    config, path = model.config, out / f"{name}.gguf"
    writer = gguf.GGUFWriter(path, made.architecture)
    writer.add_name(name)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(getattr(config, "intermediate_size", None) or config.n_inner)
    writer.add_head_count(config.num_attention_heads)
    writer.add_vocab_size(config.vocab_size)
    if "attention.head_count_kv" not in made.numbers:
        writer.add_head_count_kv(getattr(config, "num_key_value_heads", config.num_attention_heads))
    if "attention.layer_norm_epsilon" not in made.numbers:
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = getattr(config, "rope_parameters", None) or {}
    writer.add_rope_freq_base(rope.get("full_attention", rope).get("rope_theta", 10000.0))
    for key, value in made.numbers.items():
        add(writer, f"{made.architecture}.{key}", value)
    write_text(writer, made.text, config)
    arch = next(each for each, known in gguf.MODEL_ARCH_NAMES.items() if known == made.architecture)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    turn = 0
    for ours, tensor in tensors(model, names):
        values = made.change(ours, tensor.astype(np.float32), config)
        if values.ndim == 1 or "norm" in ours or "ffn_gate_inp" in ours or "shortconv.conv" in ours:
            writer.add_tensor(ours, np.ascontiguousarray(values))
            continue
        fitting = [kind for kind in made.kinds if values.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0] == 0]
        kind = fitting[turn % len(fitting)]
        turn += 1
        flat = values.reshape(-1, values.shape[-1])
        data = stored(np.ascontiguousarray(flat), kind, turn)
        writer.add_tensor(ours, data.reshape(*values.shape[:-1], -1), raw_dtype=kind)
    for ours, values in made.tensors.items():
        writer.add_tensor(ours, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    write_oracle(out, name, made)


def add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        (writer.add_uint32 if isinstance(value, int) else writer.add_float32)(key, value)


def tensors(model: Any, names: Any) -> list[tuple[str, np.ndarray]]:
    """The tensors by the file's names. A joined matrix of the gates of experts becomes two stacks."""
    found = []
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        values = tensor.numpy()
        if name.endswith("experts.gate_up_proj"):
            layer = name.split(".")[2]
            gate, up = np.split(values, 2, axis=1)
            found += [(f"blk.{layer}.ffn_gate_exps.weight", gate), (f"blk.{layer}.ffn_up_exps.weight", up)]
            continue
        if name.endswith("experts.down_proj"):
            name += ".weight"
        base, _, suffix = name.rpartition(".")
        ours = names.get_name(base)
        assert ours is not None, name
        found.append((f"{ours}.{suffix}", values))
    return found


def write_text(writer: gguf.GGUFWriter, text: str, config: Any) -> None:
    if not text:
        writer.add_tokenizer_model("no_vocab")
        writer.add_token_list([str(i) for i in range(config.vocab_size)])
        for token in ("bos", "eos", "pad"):
            if (number := getattr(config, f"{token}_token_id")) is not None:
                getattr(writer, f"add_{token}_token_id")(number)
        return
    words = ["th", "he", "the", "at", "ab"]
    if text == "gpt2":
        spelled = bytes_to_unicode()
        tokens = ["<|begin|>", "<|end|>", *spelled.values(), *words, "Ġthe"]
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("llama-bpe")
        writer.add_token_merges(["t h", "h e", "th e", "a t", "a b", "Ġ the"])
        types = [3, 3, *[1] * (len(tokens) - 2)]
    else:
        tokens = ["<unk>", "<|begin|>", "<|end|>", *(f"<0x{byte:02X}>" for byte in range(256))]
        types = [2, 3, 3, *[6] * 256]
        plain = ["▁", *"abehnt", *words, "▁the"]
        tokens += plain
        types += [1] * len(plain)
        writer.add_tokenizer_model("llama")
        writer.add_token_scores([-float(i) for i in range(len(tokens))])
        writer.add_unk_token_id(0)
    tokens += [f"[PAD{i}]" for i in range(len(tokens), config.vocab_size)]
    types += [5] * (len(tokens) - len(types))
    if text == "llama":
        writer.kv_data[0]["tokenizer.ggml.scores"].value.extend([-1e4] * (len(tokens) - 259 - 13))
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    begin = tokens.index("<|begin|>")
    writer.add_bos_token_id(begin)
    writer.add_eos_token_id(begin + 1)
    writer.add_add_bos_token(True)
    writer.add_chat_template(TEMPLATE)


def write_oracle(out: Path, name: str, made: Made) -> None:
    file = f"{name}.gguf"
    model = AutoModelForCausalLM.from_pretrained(out, gguf_file=file, dtype=torch.float32)
    weights = {}
    for key, tensor in sorted(model.state_dict().items()):
        digest = hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()
        weights[key] = {"shape": list(tensor.shape), "sha256": digest}
    text = {}
    if made.text:
        tokenizer = AutoTokenizer.from_pretrained(out, gguf_file=file)
        text = {each: tokenizer(each)["input_ids"] for each in TEXTS}
    config = model.config.to_diff_dict()
    oracle = {"weights": weights, "config": config, "ids": text}
    (out / f"{name}.json").write_text(json.dumps(oracle, indent=1, ensure_ascii=False) + "\n")


BLOCK_KINDS = (
    Kind.Q2_K, Kind.Q3_K, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K, Kind.Q5_0, Kind.Q4_1, Kind.Q5_1, Kind.IQ4_NL,
    Kind.MXFP4, Kind.BF16,
)  # fmt: skip
TEXT_SIZES = {"vocab_size": 288, "num_hidden_layers": 2}
ROPE = {"rope.dimension_count": 16}
KEYS = {"attention.key_length": 16, "attention.value_length": 16}
HEADS = {"hidden_size": 32, "head_dim": 128, "num_attention_heads": 2, "num_key_value_heads": 1}
"""transformers reads no width of heads of Qwen 3, and takes 128."""
HEAD_KEYS = {"attention.key_length": 128, "attention.value_length": 128}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
SHARED = {"shared_expert_intermediate_size": 64}
MOE_KEYS = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 32}
GEMMA = {"query_pre_attn_scalar": 16, "sliding_window": 16, "tie_word_embeddings": True, "num_hidden_layers": 2}
SOFTCAPS = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
EPS = {"attention.layer_norm_epsilon": 1e-5}
LFM2 = {
    "num_hidden_layers": 2,
    "layer_types": ["conv", "full_attention"],
    "block_auto_adjust_ff_dim": False,
    "conv_L_cache": 3,
}

MADE = {
    "llama-f16": Made(
        "llama", "llama", {"tie_word_embeddings": False, "attention_bias": True}, numbers=ROPE, change=pairs
    ),
    "llama-q4_0": Made(
        "llama", "llama", {**TEXT_SIZES, "tie_word_embeddings": True}, (Kind.Q4_0,), ROPE, pairs, text="gpt2"
    ),
    "llama-q8_0": Made(
        "llama",
        "llama",
        {**TEXT_SIZES, "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2},
        (Kind.Q8_0,),
        ROPE,
        pairs,
        text="llama",
    ),
    "llama-mixed": Made(
        "llama",
        "llama",
        {"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1},
        BLOCK_KINDS,
        {**ROPE, **KEYS},
        pairs,
    ),
    "qwen2": Made("qwen2", "qwen2", {"tie_word_embeddings": True}, (Kind.F32,)),
    "qwen3": Made("qwen3", "qwen3", HEADS, (Kind.Q8_0,), HEAD_KEYS),
    "qwen2moe": Made(
        "qwen2moe", "qwen2_moe", MOE | SHARED, (Kind.Q8_0,), MOE_KEYS | {"expert_shared_feed_forward_length": 64}, flat
    ),
    "qwen3moe": Made("qwen3moe", "qwen3_moe", MOE | {"norm_topk_prob": True}, (Kind.Q8_0,), MOE_KEYS | KEYS),
    "gemma2": Made(
        "gemma2", "gemma2", GEMMA, (Kind.Q8_0,), KEYS | SOFTCAPS | {"attention.sliding_window": 16}, one_more
    ),
    "gemma3": Made("gemma3", "gemma3_text", GEMMA, (Kind.Q8_0,), KEYS | {"attention.sliding_window": 16}, one_more),
    "phi3": Made("phi3", "phi3", {"tie_word_embeddings": False, "pad_token_id": 2}, (Kind.Q8_0,), ROPE),
    "starcoder2": Made("starcoder2", "starcoder2", {"norm_epsilon": 1e-5}, (Kind.Q8_0,), EPS),
    "stablelm": Made(
        "stablelm",
        "stablelm",
        {"layer_norm_eps": 1e-5, "use_qkv_bias": True},
        (Kind.Q8_0,),
        EPS | {"rope.dimension_count": 4},
    ),
    "nemotron": Made(
        "nemotron", "nemotron", {"norm_eps": 1e-5}, (Kind.Q8_0,), EPS | {"rope.dimension_count": 8}, one_more
    ),
    "gpt2": Made("gpt2", "gpt2", {"n_inner": 32}, (Kind.Q8_0,), EPS, conv1d),
    "lfm2": Made("lfm2", "lfm2", LFM2, (Kind.Q8_0,), {"attention.head_count_kv": [0, 2], "shortconv.l_cache": 3}, flat),
}


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for which in sys.argv[2:] or MADE:
        write(folder, which, MADE[which])
        print(which, (folder / f"{which}.gguf").stat().st_size)
