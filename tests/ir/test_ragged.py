"""A cached graph on a ragged batch is the fused graph on every sequence alone, however the work is cut into steps."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tensorwright.errors import GraphError
from tensorwright.ir.interpret import interpret
from tensorwright.ir.parse import parse_graph
from tensorwright.ir.ragged import RaggedAdapter, interpret_ragged
from tensorwright.ir.state_cache import StateCache
from tensorwright.ir.text import print_graph
from tensorwright.ir.verify import verify

# One attention layer: 2 query heads on 1 KV head of 4 dimensions, half of them rotated, a window of 5.
FUSED = """\
graph "layer" stage fused {
  %input_ids: int64[1, seq] = input()
  %position_ids: int64[1, seq] = input()
  %table: float32[20, 16] = weight() {expr = @"table"}
  %x: float32[1, seq, 16] = embedding(%table, %input_ids)
  %freq: float32[1] = constant() {value = dense<float32 [1] (0.7,)>}
  %angles: float32[1, seq, 2] = rotary_table(%position_ids, %freq) {scale = 1.0}
  %qs: float32[1, seq, 8] = slice(%x) {dim = 2, start = 0, end = 8, step = 1}
  %ks: float32[1, seq, 4] = slice(%x) {dim = 2, start = 8, end = 12, step = 1}
  %vs: float32[1, seq, 4] = slice(%x) {dim = 2, start = 12, end = 16, step = 1}
  %q: float32[1, seq, 2, 4] = view(%qs) {shape = (1, "seq", 2, 4)}
  %k: float32[1, seq, 1, 4] = view(%ks) {shape = (1, "seq", 1, 4)}
  %v: float32[1, seq, 1, 4] = view(%vs) {shape = (1, "seq", 1, 4)}
  %qr: float32[1, seq, 2, 4] = rotary(%q, %angles) {rotary_dim = 2}
  %kr: float32[1, seq, 1, 4] = rotary(%k, %angles) {rotary_dim = 2}
  %a: float32[1, seq, 2, 4] = attention(%qr, %kr, %v) {scale = 0.5, mask = "window", window = 5, softcap = 0.0}
  %y: float32[1, seq, 8] = view(%a) {shape = (1, "seq", 8)}
  return %y
}
"""

CACHED = """\
graph "layer" stage cached {
  fact kv_layers = [{"group": 0, "kv_heads": 1, "head_dim": 4, "window": 5}]
  %token_ids: int32[tokens] = input()
  %positions: int32[tokens] = input()
  %seq_starts: int32[seqs + 1] = input()
  %context_lens: int32[seqs] = input()
  %block_tables: int32[seqs, max_blocks] = input()
  %slots: int32[tokens] = input()
  %logit_rows: int32[rows] = input()
  %kv_cache.0: kv[] = input()
  %table: float32[20, 16] = weight() {expr = @"table"}
  %x: float32[tokens, 16] = embedding(%table, %token_ids)
  %freq: float32[1] = constant() {value = dense<float32 [1] (0.7,)>}
  %angles: float32[tokens, 2] = rotary_table(%positions, %freq) {scale = 1.0}
  %q: float32[tokens, 8], %c: kv[] = rotary_kv_write(%x, %angles, %slots, %kv_cache.0) {HEADS, rotary_dim = 2}
  %a: float32[tokens, 8] = paged_attention(%q, %c, %seq_starts, %context_lens, %block_tables) {HEADS, MASK}
  %y: float32[rows, 8] = gather_rows(%a, %logit_rows)
  return %y
}
""".replace("HEADS", "layer = 0, heads = 2, kv_heads = 1, head_dim = 4").replace(
    "MASK", "scale = 0.5, window = 5, softcap = 0.0"
)

SEQUENCES = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], [8, 9], [7, 9, 3, 2, 3, 8, 4]]
TABLE = torch.randn(20, 16, generator=torch.Generator().manual_seed(1))


def weights(expr):
    return TABLE


MASKS = {
    "window": (FUSED, CACHED),
    "chunk": (
        FUSED.replace('"window", window', '"chunk", window'),
        CACHED.replace("softcap = 0.0", "softcap = 0.0, chunked = true").replace(
            '"window": 5', '"window": 5, "chunked": true'
        ),
    ),
}


def alone(fused):
    graph = parse_graph(fused)
    verify(graph)
    results = []
    for ids in SEQUENCES:
        inputs = {"input_ids": torch.tensor([ids]), "position_ids": torch.arange(len(ids))[None]}
        results.append(interpret(graph, inputs, weights)[0][0])
    return results


STEPS = {
    "all at once": None,
    "one after the other": [[11, 0, 0], [0, 2, 0], [0, 0, 7]],
    "chunks and decodes mixed": [[4, 0, 1], [4, 1, 1], [3, 1, 5]],
    "token by token": [[1, 1, 1], [1, 1, 1], *[[1, 0, 1]] * 5, *[[1, 0, 0]] * 4],
}


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("mask", MASKS)
def test_a_batch_is_its_sequences(steps, block_size, mask):
    fused, cached = MASKS[mask]
    graph = parse_graph(cached)
    assert print_graph(parse_graph(print_graph(graph))) == print_graph(graph)
    verify(graph)
    results = interpret_ragged(graph, SEQUENCES, weights, steps=STEPS[steps], block_size=block_size)
    for got, expected in zip(results, alone(fused), strict=True):
        # Both references sum in float64 and round once; positions past the window only change the order.
        torch.testing.assert_close(got, expected, rtol=2**-22, atol=2**-22)


def test_sequences_matter():
    """The comparison above can fail: another token in the context changes what follows it."""
    changed = [SEQUENCES[0], SEQUENCES[1], [7, 9, 3, 2, 11, 8, 4]]
    before = interpret_ragged(parse_graph(CACHED), SEQUENCES, weights)
    after = interpret_ragged(parse_graph(CACHED), changed, weights)
    assert torch.equal(before[0], after[0])
    assert torch.equal(before[2][:4], after[2][:4])
    assert not torch.allclose(before[2][5:], after[2][5:])


def test_metadata_of_a_step():
    adapter = RaggedAdapter(parse_graph(CACHED), SEQUENCES, block_size=4)
    adapter.done = [4, 0, 2]
    inputs = adapter.inputs([3, 0, 5], last_rows_only=True)
    assert adapter.tables.tolist() == [[5, 2, 0], [4, 6, 6], [3, 1, 6]]
    assert {k: v.tolist() for k, v in inputs.items() if k != "kv_cache.0"} == {
        "token_ids": [5, 9, 2, 3, 2, 3, 8, 4],
        "positions": [4, 5, 6, 2, 3, 4, 5, 6],
        "seq_starts": [0, 3, 8],
        "context_lens": [7, 7],
        "block_tables": [[5, 2, 0], [3, 1, 6]],
        "slots": [8, 9, 10, 14, 15, 4, 5, 6],
        "logit_rows": [2, 7],
    }
    assert all(v.dtype == torch.int32 for k, v in inputs.items() if k != "kv_cache.0")


def test_a_graph_with_states_gets_a_slot_for_each_sequence():
    text = CACHED.replace(
        "  %kv_cache.0", "  %state_slots: int32[seqs] = input()\n  %state.0: state[] = input()\n  %kv_cache.0"
    )
    graph = parse_graph(text.replace("  fact", '  fact state_layers = [{"bytes": 64}]\n  fact', 1))
    verify(graph)
    assert parse_graph(print_graph(graph)).facts == graph.facts
    adapter = RaggedAdapter(graph, SEQUENCES, block_size=4)
    inputs = adapter.inputs([3, 0, 5])
    assert inputs["state_slots"].tolist() == [2, 0]
    assert inputs["state.0"] == StateCache()
    for ours, plain in zip(
        adapter.step([3, 0, 5], weights),
        RaggedAdapter(parse_graph(CACHED), SEQUENCES).step([3, 0, 5], weights),
        strict=True,
    ):
        assert torch.equal(ours, plain)


def test_the_states_of_a_step():
    zero, old = (np.zeros(2),), (np.ones(2),)
    states = StateCache().write({4: old}).copy_slot(4, 1)
    steps = states.read_batch(np.array([0, 3, 3, 4]), np.array([3, 9, 6]), np.array([4, 0, 1]), zero)
    assert [(slot, begin, end, state is zero, state is old) for slot, begin, end, state in steps] == [
        (4, 0, 3, True, False),  # begins at position 0: what the slot holds is not seen
        (1, 3, 4, False, True),
    ]
    with pytest.raises(KeyError):
        list(states.read_batch(np.array([0, 1]), np.array([9]), np.array([7]), zero))


def test_steps_must_cover_the_sequences():
    with pytest.raises(GraphError, match=r"the steps compute \[11, 1, 7\] tokens"):
        interpret_ragged(parse_graph(CACHED), SEQUENCES, weights, steps=[[11, 1, 7]])
    with pytest.raises(GraphError, match="sequence 1 has 2 tokens, 3 were asked for"):
        interpret_ragged(parse_graph(CACHED), SEQUENCES, weights, steps=[[11, 3, 7]])


def test_the_graph_must_say_what_its_layers_are():
    graph = parse_graph(CACHED)
    del graph.facts.kv_layers
    with pytest.raises(GraphError, match="the graph lacks the fact kv_layers"):
        RaggedAdapter(graph, SEQUENCES)
