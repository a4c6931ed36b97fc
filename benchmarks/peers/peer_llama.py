"""Runs llama.cpp by llama-cpp-python, compiled for this processor: Q4_0 (as its quantizer makes it), Q8_0, F16."""

from __future__ import annotations

import ctypes
import json
import time
from pathlib import Path
from typing import Any

import protocol

NAME = "llama.cpp"
FORMS = {"Q4_0": 4, "Q8_0": 8, "F16": 16}
PACKAGES = ("llama-cpp-python", "gguf", "safetensors", "torch==2.13.0")
REMOVE = ()
ENVIRONMENT = {"CMAKE_ARGS": "-DGGML_NATIVE=ON", "PIP_NO_BINARY": "llama-cpp-python"}
FILE = "model.gguf"
FILE_TYPES = {"Q4_0": 2, "Q8_0": 7}
MICRO_BATCH = 512
TENSORS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def gguf_name(name: str) -> str:
    """Maps "model.layers.3.mlp.up_proj.weight" to "blk.3.ffn_up.weight"."""
    whole = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in whole:
        return whole[name]
    parts = name.split(".")
    return f"blk.{parts[2]}.{TENSORS['.'.join(parts[3:-1])]}.{parts[-1]}"


def rope_factors(rope: dict[str, Any], head_dim: int) -> Any:
    """Returns Llama 3's scaling of frequencies in llama.cpp's form: a divisor for each frequency."""
    import numpy as np

    inverse = rope["rope_theta"] ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    length, low, high = rope["original_max_position_embeddings"], rope["low_freq_factor"], rope["high_freq_factor"]
    smooth = np.clip((length * inverse / (2 * np.pi) - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / rope["factor"] + smooth)).astype(np.float32)


def rotated_rows(weight: Any, heads: int) -> Any:
    """Returns the rows of q or k in the order of llama.cpp's Llama: the two halves of a head side by side."""
    rows = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return rows.swapaxes(1, 2).reshape(weight.shape)


def write_f16(checkpoint: Path, out: Path) -> None:
    import gguf
    import numpy as np
    from safetensors.torch import load_file

    config = json.loads((checkpoint / "config.json").read_text())
    kind, heads, kv_heads = config["model_type"], config["num_attention_heads"], config["num_key_value_heads"]
    rope, head_dim = config["rope_parameters"], config.get("head_dim") or config["hidden_size"] // heads
    writer = gguf.GGUFWriter(out, kind)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(1)
    writer.add_tokenizer_model("no_vocab")
    if kind == "llama":
        writer.add_rope_dimension_count(head_dim)
        if rope["rope_type"] == "llama3":
            writer.add_tensor("rope_freqs.weight", rope_factors(rope, head_dim))
    for name, tensor in load_file(checkpoint / "model.safetensors").items():
        array = tensor.float().numpy()
        if kind == "llama" and (".q_proj." in name or ".k_proj." in name):
            array = rotated_rows(array, heads if ".q_proj." in name else kv_heads)
        writer.add_tensor(gguf_name(name), array.astype(np.float32 if array.ndim == 1 else np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def convert(checkpoint: Path, folder: Path, form: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if form == "F16":
        write_f16(checkpoint, folder / FILE)
        return
    import llama_cpp

    whole = folder / "f16.gguf"
    write_f16(checkpoint, whole)
    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype = FILE_TYPES[form]
    result = llama_cpp.llama_model_quantize(str(whole).encode(), str(folder / FILE).encode(), ctypes.byref(options))
    whole.unlink()
    if result != 0:
        raise RuntimeError(f"llama_model_quantize answered {result}")


def bytes_per_token(checkpoint: Path, folder: Path, form: str) -> int:
    import gguf

    tensors = {t.name: int(t.n_bytes) for t in gguf.GGUFReader(folder / FILE).tensors}
    if "output.weight" in tensors:  # otherwise the embedding is also the head
        del tensors["token_embd.weight"]
    return sum(tensors.values())


class Llama:
    def __init__(self, folder: Path, form: str, threads: int):
        import llama_cpp

        self.lib, self.threads = llama_cpp, threads
        self.silent = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self.silent, None)
        llama_cpp.llama_backend_init()
        options = llama_cpp.llama_model_default_params()
        self.model = llama_cpp.llama_model_load_from_file(str(folder / FILE).encode(), options)
        if not self.model:
            raise RuntimeError(f"llama.cpp cannot load {folder / FILE}")
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))

    def context(self, sequences: int, length: int) -> Any:
        options = self.lib.llama_context_default_params()
        options.n_ctx, options.n_seq_max = length * sequences, sequences
        options.n_batch, options.n_ubatch = max(length * sequences, MICRO_BATCH), MICRO_BATCH
        options.n_threads = options.n_threads_batch = self.threads
        options.kv_unified = False
        context = self.lib.llama_init_from_model(self.model, options)
        if not context:
            raise RuntimeError(f"llama.cpp makes no context of {sequences} x {length} positions")
        return context

    def fill(self, batch: Any, rows: list[list[int]], position: int) -> None:
        """Puts the tokens `rows` of every sequence, from `position` on, into the batch; the last ones get logits."""
        entries = [(s, i, token) for s, row in enumerate(rows) for i, token in enumerate(row)]
        batch.n_tokens = len(entries)
        for n, (sequence, i, token) in enumerate(entries):
            batch.token[n], batch.pos[n] = token, position + i
            batch.n_seq_id[n], batch.seq_id[n][0] = 1, sequence
            batch.logits[n] = i == len(rows[sequence]) - 1

    def step(self, context: Any, batch: Any, sequences: int) -> list[int]:
        """Computes the batch. Returns the likeliest token of each sequence."""
        import numpy as np

        if self.lib.llama_decode(context, batch) != 0:
            raise RuntimeError("llama_decode failed")
        logits = np.ctypeslib.as_array(self.lib.llama_get_logits(context), shape=(sequences, self.vocabulary))
        return logits.argmax(-1).tolist()

    def run(self, prompts: list[list[int]], steps: int) -> protocol.Timing:
        count, length = len(prompts), len(prompts[0])
        context = self.context(count, -(-(length + steps + 1) // 256) * 256)
        batch = self.lib.llama_batch_init(count * length, 0, 1)
        try:
            self.fill(batch, [row[:1] for row in prompts], 0)
            self.step(context, batch, count)  # the first step of a context reserves its memory
            self.lib.llama_memory_clear(self.lib.llama_get_memory(context), True)
            self.fill(batch, prompts, 0)
            start = time.perf_counter()
            tokens = first = self.step(context, batch, count)
            middle = time.perf_counter()
            for i in range(steps):
                self.fill(batch, [[token] for token in tokens], length + i)
                tokens = self.step(context, batch, count)
            return protocol.Timing(middle - start, time.perf_counter() - middle, first)
        finally:
            self.lib.llama_batch_free(batch)
            self.lib.llama_free(context)


if __name__ == "__main__":
    protocol.main(convert, Llama, bytes_per_token, PACKAGES)
