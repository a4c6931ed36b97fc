"""onnx/io.json: what whoever runs a portable model must know of it beside the ONNX file itself.

{
  "version": 1,
  "model": "model.onnx", "opset": 23, "domains": {"com.microsoft": 1},
  "dtype": "float32" | "float16"            of activations and cache
  "vocab_size", "max_seq_len",
  "inputs":  {"token_ids": "int32", "positions": "int32", "seqlens_k": "int32", "total_sequence_length": "int32",
              "logit_rows": "int32"}
  "shapes":  {"token_ids": ["batch", "seq"], "positions": ["batch", "seq"], "seqlens_k": ["batch"],
              "total_sequence_length": [], "logit_rows": ["rows"], "logits": ["rows", vocab_size]}
  "token_ids_shape", "positions_shape": "[batch, seq]"
  "logits": "logits"                        float32
  "cache": one entry per layer, in order:
             {"key": "past_k.0", "value": "past_v.0", "present_key": "present_k.0", "present_value": "present_v.0",
              "shape": ["batch", kv_heads, max_seq_len, head_dim],
              "kv_heads", "head_dim", "dtype", "window"}
  "groups":  [{"window": 0, "layers": [0, 1, ...]}]       of block tables: always one, for a slot holds whole sequences
  "block_size": max_seq_len,                positions of a slot
  "slot_bytes": bytes of one sequence's cache over all layers
}

A step is B sequences of S new tokens each: either S = 1, or B = 1. positions count from 0. seqlens_k[b] is sequence b's
length, this step's tokens included, less one; total_sequence_length the largest of these lengths. logit_rows names rows
of the token-major [B * S]; none is fine. past_* and present_* must be bound to the same memory: what lies there from a
sequence's end on is never read, and only the new positions are written. Every input is there, whether or not the model
needs it. head_dim is the cache's: of models whose own is no multiple of 8 it is the next one, filled with zeros.
"""

from __future__ import annotations

from typing import Any

from tensorwright.builder.emit.onnx.group_attention import padded_dim
from tensorwright.builder.emit.onnx.model_file import CONTRIB

VERSION = 1
INPUTS: dict[str, tuple[str, ...]] = {
    "token_ids": ("batch", "seq"),
    "positions": ("batch", "seq"),
    "seqlens_k": ("batch",),
    "total_sequence_length": (),
    "logit_rows": ("rows",),
}
"""Each step's metadata, int32."""
ITEM_BYTES = {"float32": 4, "float16": 2}


def describe_io(facts: dict[str, Any], dtype: str, opset: int) -> dict[str, Any]:
    """io.json of a graph with these facts, cache and activations of type `dtype`."""
    length, vocab = facts["max_seq_len"], facts["vocab_size"]
    layers = facts["kv_layers"]
    shapes: dict[str, list[Any]] = {name: list(shape) for name, shape in INPUTS.items()}
    return {
        "version": VERSION,
        "model": "model.onnx",
        "opset": opset,
        "domains": {CONTRIB: 1},
        "dtype": dtype,
        "vocab_size": vocab,
        "max_seq_len": length,
        "inputs": dict.fromkeys(INPUTS, "int32"),
        "shapes": {**shapes, "logits": ["rows", vocab]},
        "token_ids_shape": "[batch, seq]",
        "positions_shape": "[batch, seq]",
        "logits": "logits",
        "cache": [_layer(i, about, dtype, length) for i, about in enumerate(layers)],
        "groups": [{"window": 0, "layers": list(range(len(layers)))}],
        "block_size": length,
        "slot_bytes": slot_bytes(facts, dtype),
    }


def _layer(index: int, about: dict[str, Any], dtype: str, length: int) -> dict[str, Any]:
    names = {"key": "past_k", "value": "past_v", "present_key": "present_k", "present_value": "present_v"}
    head_dim = padded_dim(about["head_dim"])
    return {
        **{role: f"{name}.{index}" for role, name in names.items()},
        "shape": ["batch", about["kv_heads"], length, head_dim],
        "kv_heads": about["kv_heads"],
        "head_dim": head_dim,
        "dtype": dtype,
        "window": about["window"],
    }


def slot_bytes(facts: dict[str, Any], dtype: str) -> int:
    """Of one sequence of max_seq_len positions, keys and values of all layers."""
    elements = sum(about["kv_heads"] * padded_dim(about["head_dim"]) for about in facts["kv_layers"])
    return int(2 * elements * facts["max_seq_len"] * ITEM_BYTES[dtype])
