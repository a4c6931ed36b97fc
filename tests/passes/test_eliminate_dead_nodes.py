from support.pass_graphs import assert_fires, assert_silent, graph_of, ops
from tensorwright.passes.eliminate_dead_nodes import eliminate_dead_nodes

BODY = """
  %x: float32[seq] = input()
  %unused: float32[seq] = input()
  %y: float32[seq] = neg(%x)
  %dead: float32[seq] = neg(%y)
  %deader: float32[seq] = exp(%dead)
"""


def test_what_nobody_needs_goes_inputs_stay():
    after = assert_fires(eliminate_dead_nodes, graph_of(BODY + "  return %y"), 2, exact=True)
    assert ops(after) == ["neg"]
    assert len(after.inputs) == 2


def test_what_somebody_needs_stays():
    assert_silent(eliminate_dead_nodes, graph_of(BODY + "  return %deader"))


def test_a_node_with_one_live_result_stays():
    assert_silent(
        eliminate_dead_nodes,
        graph_of(
            """
            %x: float32[1, seq, 4] = input()
            %w: float32[4] = weight() {expr = @"w"}
            %y: float32[1, seq, 4], %s: float32[1, seq, 4] = add_rms_norm(%x, %x, %w) {eps = 1e-5, weight_offset = 0.0}
            return %s
            """,
            "fused",
        ),
    )


def test_pinned_counts(model):
    assert model.count("eliminate_dead_nodes") == 0
