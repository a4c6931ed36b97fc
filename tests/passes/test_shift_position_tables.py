import pytest

from support.pass_graphs import assert_fires, assert_silent, graph_of, ops
from tensorwright.passes.rewriting.matcher import closest
from tensorwright.passes.shift_position_tables import PATTERN, check, shift_position_tables

BODY = """
  %position_ids: int64[1, seq] = input()
  %two: int64[] = constant() {value = 2}
  %rows: int64[1, seq] = add(%position_ids, %two)
  %w: float32[9, 4] = weight() {expr = @"w"}
  %y: float32[1, seq, 4] = embedding(%w, %rows)
"""


def test_fires():
    after = assert_fires(shift_position_tables, graph_of(BODY + "  return %y", "fused"), 1, exact=True)
    assert ops(after) == ["embedding"]
    assert after.find("embedding")[0].inputs[0].shape == (7, 4)


def test_the_sum_may_have_other_readers():
    after = assert_fires(shift_position_tables, graph_of(BODY + "  return %y, %rows", "fused"), 1, exact=True)
    assert ops(after) == ["add", "embedding"]


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("value = 2", "value = -2", "not within the table"),
        ('%w: float32[9, 4] = weight() {expr = @"w"}',
         "%w: float32[2, 4] = constant() {value = dense<float32 [2, 4] (1, 2, 3, 4, 5, 6, 7, 8)>}", "not a weight"),
        ("%two: int64[] = constant() {value = 2}", "%two: int64[1, seq] = input()", "not a scalar constant"),
    ],
)  # fmt: skip
def test_does_not_fire_and_says_why(old, new, reason):
    assert old in BODY
    graph = graph_of(BODY.replace(old, new) + "  return %y", "fused")
    assert_silent(shift_position_tables, graph)
    assert reason in closest(graph, PATTERN, check)


def test_pinned_counts(rewritten):
    assert rewritten("opt").count("shift_position_tables") == 1
    assert rewritten("gpt2").count("shift_position_tables") == 0
