"""Makes the io.json of a portable model from the facts of its graph."""

from __future__ import annotations

from tensorwright.builder.emit.onnx.group_attention import padded_dim
from tensorwright.builder.emit.onnx.model_file import CONTRIB
from tensorwright.engine_format.onnx_manifest import INPUTS, CacheLayer, OnnxManifest
from tensorwright.ir.facts import Facts, KvLayer


def make_manifest(facts: Facts, dtype: str, opset: int) -> OnnxManifest:
    """Returns the manifest of a graph with these facts. dtype: the type of the cache and of the activations."""
    return OnnxManifest(
        layers=tuple(_layer(index, layer, dtype) for index, layer in enumerate(facts.kv_layers)),
        dtype=dtype,
        vocab_size=facts.vocab_size,
        max_seq_len=facts.max_seq_len,
        opset=opset,
        domains={CONTRIB: 1},
        inputs=dict.fromkeys(INPUTS, "int32"),
    )


def _layer(index: int, layer: KvLayer, dtype: str) -> CacheLayer:
    return CacheLayer(
        key=f"past_k.{index}",
        value=f"past_v.{index}",
        present_key=f"present_k.{index}",
        present_value=f"present_v.{index}",
        kv_heads=layer.kv_heads,
        head_dim=padded_dim(layer.head_dim),
        dtype=dtype,
        window=layer.window,
    )
