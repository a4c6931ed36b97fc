"""shard_tensors: that ranks share the layers of every kind, that numbers stay, what stays whole and what is refused."""

from __future__ import annotations

import pytest

from support.shared_graphs import assert_same_numbers, shared, whole_of
from support.tiny_families import VARIANTS
from tensorwright.errors import InvalidOptionError, UnsupportedModelError
from tensorwright.ir.parse import parse_graph
from tensorwright.passes.rewriting.cut import cut, cut_columns, cut_heads
from tensorwright.passes.shard_tensors import shard_tensors

EVERY_KIND = (
    "llama", "llama_biases", "llama_mqa", "gpt2", "bloom", "falcon", "phi3", "stablelm_head_norms", "gemma3", "olmo2",
    "gpt_oss", "granitemoeshared", "deepseek_v2_dense", "apertus", "mamba2", "mamba", "qwen3_next", "kimi_linear",
    "lfm2", "recurrent_gemma",
)  # fmt: skip
"""Variants that differ in what their layers are made of. With all of VARIANTS the tests take ten minutes."""


def test_the_kinds_are_there() -> None:
    assert set(EVERY_KIND) <= set(VARIANTS)


@pytest.mark.parametrize("variant", EVERY_KIND)
def test_two_ranks_compute_what_one_does(tmp_path_factory, variant) -> None:
    graphs = assert_same_numbers(tmp_path_factory, variant, 2, 1)
    assert all(shard_tensors(graph.clone()) == 0 for graph in graphs)  # there is nothing left to share


@pytest.mark.parametrize("ranks", [3, 4])
def test_more_ranks_than_heads_of_k_share_these(tmp_path_factory, ranks) -> None:
    graphs = assert_same_numbers(tmp_path_factory, "llama", ranks, 1)
    heads = [[layer.kv_heads for layer in graph.facts.kv_layers] for graph in graphs]
    assert heads == [[1, 1]] * ranks


def test_each_rank_has_its_part_and_no_more(tmp_path_factory) -> None:
    def elements(graph):
        sizes = [node.output.shape for node in graph.find("weight") if node.output.rank == 2]
        return sum(int(n) * int(k) for n, k in sizes)

    whole = whole_of(tmp_path_factory, "llama")
    parts = [elements(graph) for graph in shared(whole, 2, 1)]
    assert sum(parts) == elements(whole)
    assert max(parts) <= 0.65 * elements(whole)  # 16 columns stay together, which is much of a tiny matrix


@pytest.mark.parametrize(
    ("variant", "ranks", "sums"), [("olmo2", 4, 7), ("mamba2", 2, 3), ("mamba2", 4, 5), ("minimax", 3, 9)]
)
def test_a_norm_that_ranks_cut_has_a_sum_of_squares(tmp_path_factory, variant, ranks, sums) -> None:
    """Of OLMo 2 that of q and k together, and four ranks have its two heads of K. Of Mamba-2, whose norms have two
    groups, only four ranks cut these. Beside them there are the sums of products, and that of the embedding."""
    graphs = assert_same_numbers(tmp_path_factory, variant, ranks, 1)
    assert [len(graph.find("all_reduce")) for graph in graphs] == [sums] * ranks


@pytest.mark.parametrize("variant", ["mamba", "mamba2", "qwen3_next", "recurrent_gemma", "minimax"])
def test_ranks_have_parts_of_states(tmp_path_factory, variant) -> None:
    """Together they have no more than the whole; the bytes of each are a multiple of 64."""
    whole = [layer.bytes for layer in whole_of(tmp_path_factory, variant).facts.state_layers]
    parts = [[layer.bytes for layer in graph.facts.state_layers] for graph in shared(whole_of(
        tmp_path_factory, variant), 2, 1)]  # fmt: skip
    for size, *each in zip(whole, *parts, strict=True):
        assert size <= sum(each) <= size + 64
        assert all(0 < part < size for part in each)


def test_groups_that_several_ranks_read_are_copied(tmp_path_factory) -> None:
    """Qwen3-Next has 2 heads of q and k for 4 heads of v: of 4 ranks each has a head of v, and two have one of k."""
    for graph in assert_same_numbers(tmp_path_factory, "qwen3_next", 4, 1):
        (rule,) = graph.find("carried_delta_rule")
        assert (rule.attrs["heads"], rule.attrs["key_heads"]) == (1, 1)


@pytest.mark.parametrize(("variant", "ranks"), [("gpt_oss", 2), ("granitemoeshared", 3)])
def test_experts_may_stay_whole(tmp_path_factory, variant, ranks) -> None:
    """Each rank has some, which follow each other in the order of ranks; with biases and without."""
    graphs = assert_same_numbers(tmp_path_factory, variant, ranks, 1, expert_parallel=True)
    nodes = [graph.find("experts")[0] for graph in graphs]
    parts = [(node.attrs["first"], int(node.operand(3).shape[0])) for node in nodes]
    assert [first for first, _ in parts] == [sum(count for _, count in parts[:rank]) for rank in range(ranks)]
    assert {node.attrs["total"] for node in nodes} == {sum(count for _, count in parts)}
    whole = whole_of(tmp_path_factory, variant).find("experts")[0]
    assert all(node.operand(4).shape[1:] == whole.operand(4).shape[1:] for node in nodes)


def test_fewer_experts_than_ranks_are_refused(tmp_path_factory) -> None:
    whole = whole_of(tmp_path_factory, "granitemoeshared").clone()
    for node in whole.find("experts"):
        for i in (3, 4):
            source = node.operand(i).producer
            source.attrs = {"expr": source.attrs["expr"].slice(0, 0, 1)}
            source.output.shape = (1, *source.output.shape[1:])
    with pytest.raises(InvalidOptionError, match="has 1 experts, fewer than the 2 ranks of a stage; leave out"):
        shared(whole, 2, 1, expert_parallel=True)


def test_what_stays_whole_is_named(tmp_path_factory) -> None:
    (first, _) = shared(whole_of(tmp_path_factory, "granitemoeshared"), 2, 1)
    assert any("router" in text and "add_rms_norm needs all columns" in text for text in first.facts.left_whole)
    for variant in ("llama", "olmo2", "mamba2"):
        (first, _) = shared(whole_of(tmp_path_factory, variant), 2, 1)
        assert first.facts.left_whole == []


@pytest.mark.parametrize(("rows", "whole"), [(8, ["c: all_reduce needs all columns"]), (64, ["a: input needs all"])])
def test_of_three_products_the_larger_two_are_shared(rows, whole) -> None:
    """c(b(silu(a(x)))): the sum is behind b, and c is whole, unless c has more weights than a."""
    graph = parse_graph(
        f"""\
graph "g" stage cached {{
  fact kv_layers = []
  fact tensor_parallel = 2
  %x: float32[tokens, 8] = input()
  %a: float32[16, 8] = weight() {{expr = @"a"}}
  %b: float32[8, 16] = weight() {{expr = @"b"}}
  %c: float32[{rows}, 8] = weight() {{expr = @"c"}}
  %1: float32[tokens, 16] = linear(%x, %a) in a
  %2: float32[tokens, 16] = silu(%1)
  %3: float32[tokens, 8] = linear(%2, %b) in b
  %4: float32[tokens, {rows}] = linear(%3, %c) in c
  return %4
}}
"""
    )
    assert shard_tensors(graph) == 1
    assert [text[: len(name)] for text, name in zip(graph.facts.left_whole, whole, strict=True)] == whole


STATE_OF_TWO_READERS = """\
graph "g" stage cached {
  fact kv_layers = []
  fact state_layers = [{"bytes": 64}]
  fact tensor_parallel = 2
  %seq_starts: int32[seqs+1] = input()
  %context_lens: int32[seqs] = input()
  %state_slots: int32[seqs] = input()
  %state.0: state[] = input()
  %x: float32[tokens, 8] = input()
  %a: float32[8, 8] = weight() {expr = @"a"}
  %b: float32[8, 8] = weight() {expr = @"b"}
  %w: float32[2, 8] = weight() {expr = @"w"}
  %n: float32[8] = weight() {expr = @"n"}
  %made: float32[tokens, 8] = linear(%x, %a)
  %y: float32[tokens, 8], %s: state[] = carried_conv(%made, %seq_starts, %context_lens, %state_slots, %state.0, %w) {state = 0, activation = "silu"}
  %shared: float32[tokens, 8] = linear(%y, %b)
  %normed: float32[tokens, 8] = rms_norm(%y, %n) {eps = 1e-5, weight_offset = 0.0}
  %whole: float32[tokens, 8] = linear(%normed, %b)
  %sum: float32[tokens, 8] = add(%shared, %whole)
  return %sum
}
"""  # noqa: E501


def test_a_state_that_one_reader_needs_whole_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="cannot share the state of carried_conv, for one of the products"):
        shard_tensors(parse_graph(STATE_OF_TWO_READERS))


def test_parallel_branches_have_one_sum(tmp_path_factory) -> None:
    layers = whole_of(tmp_path_factory, "gpt_neox").facts.layers
    sums = [len(graph.find("all_reduce")) for graph in shared(whole_of(tmp_path_factory, "gpt_neox"), 2, 1)]
    assert sums == [layers + 1] * 2  # one of each layer, and that of the embedding


def test_products_of_the_same_columns_have_one_sum(tmp_path_factory) -> None:
    """Of Mamba's inputs of steps, B and C: with the last product of a layer that is two sums, and the embedding's."""
    for graph in shared(whole_of(tmp_path_factory, "mamba"), 2, 1):
        assert len(graph.find("all_reduce")) == 2 * graph.facts.layers + 1
        scans = graph.find("carried_selective_scan")
        assert len({node.operand(i).producer.operand(0) for node in scans for i in (2, 3)}) == graph.facts.layers


def test_more_ranks_than_heads_are_refused(tmp_path_factory) -> None:
    with pytest.raises(InvalidOptionError, match="tensor_parallel must be at most 4, the heads of a layer, not 5"):
        shared(whole_of(tmp_path_factory, "llama"), 5, 1)


@pytest.mark.parametrize(("total", "ranks", "grain"), [(100, 3, 1), (300, 4, 128), (7, 7, 1), (128, 2, 64)])
def test_cuts_have_no_gap(total, ranks, grain) -> None:
    parts = [cut(total, ranks, rank, grain) for rank in range(ranks)]
    assert [begin for begin, _ in parts] == [0, *(end for _, end in parts[:-1])]
    assert parts[-1][1] == total
    assert all(begin % grain == 0 for begin, _ in parts)


@pytest.mark.parametrize(("heads", "kv_heads", "ranks"), [(14, 2, 2), (14, 2, 4), (8, 8, 3), (32, 8, 16), (6, 1, 5)])
def test_every_head_has_one_rank_and_finds_its_keys(heads, kv_heads, ranks) -> None:
    group, end = heads // kv_heads, 0
    for rank in range(ranks):
        own, own_kv = cut_heads(heads, kv_heads, ranks, rank)
        assert own[0] == end < own[1]
        end = own[1]
        assert own_kv == (own[0] // group, (own[1] - 1) // group + 1)
        assert (own[1] - own[0]) % (own_kv[1] - own_kv[0]) == 0
    assert end == heads


def test_too_few_columns_or_heads() -> None:
    assert cut_columns(3, 4, 0) is None
    assert cut_heads(3, 3, 4, 0) is None
