"""The tracer: the graph of every tiny variant is transformers' own computation, bit for bit."""

from __future__ import annotations

import pytest

from support.published import publish
from support.tiny_families import VARIANTS
from support.tiny_models import make_variant
from support.traced import LENGTHS, assert_same_logits
from tensorwright.builder.trace.export import trace, trace_for_engine
from tensorwright.ir.verify import verify
from tensorwright.models.checkpoint import open_checkpoint
from tensorwright.models.registry import expected_counts

IN_BFLOAT16 = ["llama3_rope", "llama_yarn", "phi3_longrope", "llama_biases", "llama_mqa", "qwen2", "flint"]
IN_FLOAT32_ALONE = ("ernie4_5_moe",)
"""Families that keep the matrices of routers in float32, which no narrower engine does."""
IN_FLOAT16 = ["llama_yarn", "gpt2", "flint"]
CASES = (
    [(v, "float32") for v in VARIANTS] + [(v, "bfloat16") for v in IN_BFLOAT16] + [(v, "float16") for v in IN_FLOAT16]
)


@pytest.mark.parametrize(("variant", "dtype"), CASES)
def test_the_graph_is_transformers_bit_for_bit(tmp_path, variant, dtype):
    """In float32 it is that of a bfloat16 engine, from a config.json as published: neither may change a constant."""
    path = make_variant(tmp_path / "m", variant)
    if dtype == "float32":
        checkpoint = open_checkpoint(publish(path, tmp_path / "published", dtype="bfloat16"))
        assert checkpoint.native_dtype == "bfloat16"
        assert expected_counts(checkpoint.config) == expected_counts(open_checkpoint(path).config)
        engine = "float32" if variant in IN_FLOAT32_ALONE else "bfloat16"
        graph = trace_for_engine(checkpoint, dtype=engine, max_seq_len=128)
        assert graph.facts.dtype == engine
    else:
        graph = trace(open_checkpoint(path), dtype=dtype, max_seq_len=128)
    verify(graph, "traced")
    # A longrope traced for 128 positions has long factors at all lengths; transformers past the original 32 only.
    assert_same_logits(graph, path, dtype, (33, 60) if "longrope" in graph.facts else LENGTHS)
