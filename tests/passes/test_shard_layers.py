"""shard_layers: that stages compute what the whole graph does, bit for bit; how layers are cut; and what is refused."""

from __future__ import annotations

import pytest

from support.shared_graphs import assert_same_numbers, shared, whole_of
from tensorwright.errors import InvalidOptionError
from tensorwright.passes.shard_layers import cut_evenly, shard_layers


@pytest.mark.parametrize("variant", ["llama", "gpt2", "gemma3", "gpt_neox", "gpt_oss", "jamba", "deepseek_v2_dense"])
def test_two_stages_compute_what_one_does(tmp_path_factory, variant) -> None:
    graphs = assert_same_numbers(tmp_path_factory, variant, 1, 2)
    assert all(shard_layers(graph.clone()) == 0 for graph in graphs)


def test_both_at_once(tmp_path_factory) -> None:
    assert_same_numbers(tmp_path_factory, "llama_biases", 2, 2)


def test_messages_are_received_as_they_are_sent(tmp_path_factory) -> None:
    first, second = shared(whole_of(tmp_path_factory, "llama"), 1, 2)
    sent = [(node.attrs["message"], node.output.shape[1]) for node in first.find("send")]
    received = [(node.attrs["message"], node.output.shape[1]) for node in second.find("receive")]
    assert sent == received != []
    assert [layer.group for layer in second.facts.kv_layers] == [0]
    assert second.find("rotary_table")  # positions are known to every stage
    assert not first.find("gather_rows")
    assert not second.find("embedding")


def test_each_layer_has_one_stage(tmp_path_factory) -> None:
    whole = whole_of(tmp_path_factory, "gemma3")
    parts = shared(whole, 1, 2)
    assert sum(len(graph.facts.kv_layers) for graph in parts) == len(whole.facts.kv_layers)
    assert sum(len(graph.find("paged_attention")) for graph in parts) == len(whole.find("paged_attention"))


def test_more_stages_than_layers_are_refused(tmp_path_factory) -> None:
    with pytest.raises(InvalidOptionError, match="pipeline_parallel must be at most 2, the layers of the model, not 3"):
        shared(whole_of(tmp_path_factory, "llama"), 1, 3)


def test_a_cache_that_a_later_stage_reads_is_refused(tmp_path_factory) -> None:
    with pytest.raises(InvalidOptionError, match="cannot be sent from stage to stage"):
        shared(whole_of(tmp_path_factory, "gemma4_shared"), 1, 2)


@pytest.mark.parametrize(
    ("work", "stages", "last", "cuts"),
    [
        ([1, 1, 1, 1], 2, 0, [2]),
        ([1, 1, 1, 1], 2, 2, [3]),
        ([5, 1, 1, 1], 2, 0, [1]),
        ([1, 1, 1], 3, 100, [1, 2]),
        ([1] * 6, 3, 0, [2, 4]),
    ],
)
def test_the_most_work_of_a_stage_is_least(work, stages, last, cuts) -> None:
    assert cut_evenly(work, stages, last) == cuts
