"""The facts of a graph: what may be read, what is printed, and in which order."""

from __future__ import annotations

import pytest

from tensorwright.engine_format.weight_formats import parse_spec
from tensorwright.engine_format.weight_layouts import GATED, KINDS, WeightLayout, parse_layout
from tensorwright.errors import GraphError
from tensorwright.ir.facts import DECLARED, Buffer, Facts, KvLayer, StateLayer

EVERY = Facts(
    model_type="llama", dtype="bfloat16", max_seq_len=64, vocab_size=101, hidden_size=32, rows="hidden",
    layers=2, heads=4,
    kv_heads=2,
    head_dim=8, max_position_embeddings=128, bos_token_id=None, eos_token_ids=[1, 2], longrope={"factors": "long"},
    left_out={"mtp": {"reason": "no text", "tensors": 1, "bytes": 4}}, wide=["a", "b"], expanded_kv_elements=96,
    block_size=32, kv_cache_dtype="int8", attention_window=8, sink_tokens=2, kv_budget=96, recent_tokens=32,
    kv_interval=128, sparse_prefill=128, activations="int8",
    quantize=parse_spec("int4,lm_head=none"),
    channel_scales="awq", column_orders={'"w"': "v"}, outlier_columns={'"w"': [3, 17]},
    kv_layers=[KvLayer(0, 2, 8, 0), KvLayer(1, 2, 8, 5, "int8", sink_tokens=2)], state_layers=[StateLayer(64)],
    tensor_parallel=2, tensor_rank=1, pipeline_parallel=3, pipeline_rank=2,
    expert_parallel=True, left_whole=["a.b: it needs all columns"],
    buffers=[Buffer("rows", "float32", 8, 64, 128)],
    token_arena_bytes=1, row_arena_bytes=2, logits_buffer=0,
)  # fmt: skip


def test_every_fact_comes_back_from_its_literal() -> None:
    read = Facts()
    for name, literal in reversed(list(EVERY.literals())):
        read.read(name, literal)
    assert read == EVERY
    assert [name for name, _ in read.literals()] == list(DECLARED), "in the order of declaration"


def test_a_fact_that_is_not_set() -> None:
    facts = Facts(layers=2)
    assert (facts.quantize, facts.kv_cache_dtype, facts.longrope) == (None, "auto", {})
    with pytest.raises(GraphError, match="the graph lacks the fact block_size"):
        _ = facts.block_size
    assert "layers" in facts
    assert "block_size" not in facts


def test_a_default_is_not_printed() -> None:
    facts = EVERY.copy()
    facts.update(kv_cache_dtype="auto", activations="auto", quantize=None, longrope={})
    del facts.bos_token_id
    gone = {name for name, _ in EVERY.literals()} - {name for name, _ in facts.literals()}
    assert gone == {"kv_cache_dtype", "activations", "quantize", "longrope", "bos_token_id"}
    assert EVERY.kv_cache_dtype == "int8", "a copy has facts of its own"


def test_an_unknown_fact_is_refused() -> None:
    with pytest.raises(GraphError, match="no fact of a graph is called 'size'; there are model_type, dtype"):
        Facts(size=1)


@pytest.mark.parametrize("gate", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_layout_comes_back_from_its_name(kind: str, gate: bool) -> None:
    spec = parse_spec("int4:g64")
    for fmt in (None, spec.linears) if kind == "quantized" else (None,):
        layout = WeightLayout(kind, gate, fmt)
        if gate and kind not in GATED:
            continue
        assert parse_layout(str(layout)) == layout
