"""Runs llama.cpp by llama-cpp-python, compiled for this processor: F16, and the forms that its quantizer makes.

The K-quants have blocks of 256 columns. Its quantizer takes a form of 32 columns and more bits for other matrices.
"""

from __future__ import annotations

import ctypes
import time
from pathlib import Path
from typing import Any

import gguf_file
import protocol

NAME = "llama.cpp"
FORMS = {"Q2_K": 2, "Q3_K_M": 3, "Q4_0": 4, "Q4_K_M": 4, "MXFP4": 4, "Q8_0": 8, "F16": 16}
PACKAGES = ("llama-cpp-python", "gguf", "safetensors", "torch==2.13.0")
REMOVE = ()
ENVIRONMENT = {"CMAKE_ARGS": "-DGGML_NATIVE=ON", "PIP_NO_BINARY": "llama-cpp-python"}
FILE = "model.gguf"
FILE_TYPES = {"Q4_0": 2, "Q8_0": 7, "Q2_K": 10, "Q3_K_M": 12, "Q4_K_M": 15, "MXFP4": 38}
"""The numbers of llama_ftype, in llama.h. MXFP4 is the form of experts; other matrices are Q8_0 beside it."""
MICRO_BATCH = 512


def convert(checkpoint: Path, folder: Path, form: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if form == "F16":
        gguf_file.write(checkpoint, folder / FILE)
        return
    import llama_cpp

    whole = folder / "f16.gguf"
    gguf_file.write(checkpoint, whole)
    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype = FILE_TYPES[form]
    result = llama_cpp.llama_model_quantize(str(whole).encode(), str(folder / FILE).encode(), ctypes.byref(options))
    whole.unlink()
    if result != 0:
        raise RuntimeError(f"llama_model_quantize answered {result}")


def bytes_per_token(checkpoint: Path, folder: Path, form: str) -> int:
    return gguf_file.bytes_of_a_token(folder / FILE)


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
