"""--verify's own arithmetic: what it computes, and that it can fail."""

import pytest

from support.pass_graphs import graph_of
from tensorwright.builder.checkpoint_weights import checkpoint_weights
from tensorwright.errors import PassError
from tensorwright.ir.ops import summing_ops
from tensorwright.passes.rewriting.compare import Comparison, tolerance


def test_the_same_sequence_at_every_stage(model):
    comparison = Comparison(checkpoint_weights(model.checkpoint))
    assert comparison.check(model.traced, "trace", lossy=False) == 0.0
    assert comparison.check(model.traced, "nothing", lossy=False) == 0.0
    assert comparison.check(model.report.cached_graph, "all", lossy=False) > 0.0
    assert comparison.check(model.report.graph, "lower", lossy=False) > 0.0


def test_a_change_of_one_weight_is_seen(model):
    graph = model.report.cached_graph
    comparison = Comparison(checkpoint_weights(model.checkpoint))
    comparison.check(graph, "before", lossy=False)
    broken = graph.clone()
    broken.find("rms_norm")[0].attrs["weight_offset"] = 0.001
    with pytest.raises(PassError, match=r"pass spoil changed the numbers: .* must be at most"):
        comparison.check(broken, "spoil", lossy=False)


def test_the_bound_is_far_below_the_logits(model):
    """A bound near the size of the logits could not fail."""
    assert tolerance(model.traced, 1.0) < 1e-4


def test_products_of_quantized_weights_are_sums_too():
    """Without them the bound of a quantized graph would not grow with its depth."""
    body = """
  %token_ids: int32[tokens] = input()
  %table: float32[20, 8] = weight() {expr = @"table"}
  %x: float32[tokens, 8] = embedding(%table, %token_ids)
  %w: float32[8, 8] = weight() {expr = @"w"}
  %y: float32[tokens, 8] = OP(%x, %w, none)REST
  return %y"""
    bounds = {
        name: tolerance(graph_of(body.replace("OP", name).replace("REST", rest), "cached"), 1.0)
        for name, rest in (
            ("linear", ""),
            ("quantized_linear", ' {format = "int8:g32"}'),
            ("weight_only_linear", ' {format = "int8:g32"}'),
        )
    }
    assert len(set(bounds.values())) == 1, bounds
    assert {"rms_norm_columns", "layer_norm_columns", "quantized_matmul"} <= summing_ops()
