"""--verify's own arithmetic: what it computes, and that it can fail."""

import pytest

from tensorwright.builder.ir.interpret import checkpoint_weights
from tensorwright.errors import PassError
from tensorwright.passes.compare import Comparison, tolerance


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
