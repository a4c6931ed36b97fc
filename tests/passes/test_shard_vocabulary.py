"""shard_vocabulary: which matrices are shared, that each rank has its tokens, and that a tied matrix is stored once."""

from __future__ import annotations

import pytest

from support.shared_graphs import assert_same_numbers, shared, whole_of


@pytest.mark.parametrize("variant", ["llama_tied", "gemma2", "gpt2"])
def test_the_numbers_stay(tmp_path_factory, variant) -> None:
    assert_same_numbers(tmp_path_factory, variant, 2, 1)


@pytest.mark.parametrize("ranks", [2, 3])
def test_each_rank_embeds_its_tokens(tmp_path_factory, ranks) -> None:
    whole = whole_of(tmp_path_factory, "llama")
    firsts, end = [], 0
    for graph in shared(whole, ranks, 1):
        (node,) = graph.find("embedding")
        firsts.append(node.attrs["first"])
        assert firsts[-1] == end
        end += int(node.operand(0).shape[0])
        (join,) = graph.find("all_gather")
        assert join.attrs == {"first": firsts[-1], "columns": whole.facts.vocab_size}
        assert graph.outputs == [join.output]
    assert end == whole.facts.vocab_size


def test_a_tied_matrix_is_stored_once(tmp_path_factory) -> None:
    for graph in shared(whole_of(tmp_path_factory, "llama_tied"), 2, 1):
        (embedding,), (join,) = graph.find("embedding"), graph.find("all_gather")
        logits = join.operand(0).producer
        assert embedding.operand(0).producer.attrs == logits.operand(1).producer.attrs


def test_a_table_of_positions_stays_whole(tmp_path_factory) -> None:
    for graph in shared(whole_of(tmp_path_factory, "gpt2"), 2, 1):
        by_position = [node for node in graph.find("embedding") if node.operand(1).name == "positions"]
        assert by_position
        assert all("first" not in node.attrs for node in by_position)
