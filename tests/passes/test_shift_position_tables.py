import numpy as np
import pytest

from support.pass_graphs import assert_fires, assert_silent, graph_of, ops
from tensorwright.passes.rewriting.matcher import closest
from tensorwright.passes.shift_position_tables import (
    INDEXED,
    PATTERN,
    SAME_ROW,
    check,
    check_indexed,
    check_same_row,
    shift_position_tables,
)

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


NUMBERS = f"constant() {{value = dense<float32 [8, 2] ({', '.join(map(str, range(1, 17)))})>}}"
TABLE = f"""
  %position_ids: int64[1, seq] = input()
  %two: int64[] = constant() {{value = 2}}
  %rows: int64[1, seq] = add(%position_ids, %two)
  %flat: int64[seq] = view(%rows) {{shape = ("seq",)}}
  %w: float32[8, 2] = {NUMBERS}
"""
OF_ROWS = (
    TABLE
    + """
  %y: float32[seq, 2] = index(%w, %flat)
  return %y"""
)


def test_a_table_that_the_model_computes():
    after = assert_fires(shift_position_tables, graph_of(OF_ROWS, "fused"), 1, exact=True)
    assert ops(after) == ["embedding", "view"]
    assert after.find("embedding")[0].inputs[0].constant.tolist() == np.arange(5.0, 17.0).reshape(6, 2).tolist()


def test_a_table_without_an_offset():
    text = OF_ROWS.replace("view(%rows)", "view(%position_ids)")
    after = assert_fires(shift_position_tables, graph_of(text, "fused"), 1, exact=True)
    assert after.find("embedding")[0].inputs[0].shape == (8, 2)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("value = 2}", "value = 8}", "not within the table"),
        ("%position_ids: int64[1, seq] = input()", "%ids: int64[1, seq] = input()\n"
         "  %position_ids: int64[1, seq] = mul(%ids, %ids)", "no input of the graph"),
        (NUMBERS, 'weight() {expr = @"w"}', "no table"),
    ],
)  # fmt: skip
def test_other_tables_stay(old, new, reason):
    assert old in OF_ROWS
    graph = graph_of(OF_ROWS.replace(old, new), "fused")
    assert_silent(shift_position_tables, graph)
    assert reason in closest(graph, INDEXED, check_indexed)


SAME = """
  %x: float32[1, seq, 4] = input()
  %w: float32[3, 4] = weight() {expr = @"w"}
  %one: int64[1, 1] = constant() {value = dense<int64 [1, 1] (1)>}
  %row: float32[1, 1, 4] = embedding(%w, %one)
  %y: float32[1, seq, 4] = add(%x, %row)
  return %y"""


def test_the_same_row_for_every_position():
    after = assert_fires(shift_position_tables, graph_of(SAME, "fused"), 1, exact=True)
    assert ops(after) == ["add"]
    assert str(after.find("weight")[0].attrs["expr"]) == 'reshape([4], slice(0, 1, 2, "w"))'


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("(1)>}", "(3)>}", "the row is not in the table"),
        ("constant() {value = dense<int64 [1, 1] (1)>}", "input()", "the row is not a constant"),
        ('weight() {expr = @"w"}', "input()", "not a weight"),
    ],
)
def test_other_rows_stay(old, new, reason):
    assert old in SAME
    graph = graph_of(SAME.replace(old, new), "fused")
    assert_silent(shift_position_tables, graph)
    assert reason in closest(graph, SAME_ROW, check_same_row)


def test_pinned_counts(rewritten):
    assert rewritten("opt").count("shift_position_tables") == 1
    assert rewritten("xglm").count("shift_position_tables") == 1
    assert rewritten("gpt2").count("shift_position_tables") == 0
