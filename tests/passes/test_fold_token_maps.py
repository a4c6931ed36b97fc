import numpy as np
import pytest

from support.pass_graphs import assert_fires, assert_silent, graph_of, numbers, source_of
from tensorwright.ir.weights import Concat
from tensorwright.passes.fold_token_maps import PATTERN, check_rows, fold_token_maps, runs_of
from tensorwright.passes.rewriting.matcher import closest

BODY = """
  %input_ids: int64[1, seq] = input()
  %w: float32[9, 4] = weight() {expr = @"w"} in embed
  %image: int64[] = constant() {value = 3}
  %video: int64[] = constant() {value = 5}
  %zero: int64[] = constant() {value = 0}
  %is_image: bool[1, seq] = eq(%input_ids, %image)
  %is_video: bool[1, seq] = eq(%input_ids, %video)
  %either: bool[1, seq] = logical_or(%is_image, %is_video)
  %ids: int64[1, seq] = where(%either, %zero, %input_ids)
  %y: float32[1, seq, 4] = embedding(%w, %ids)
"""


def test_fires():
    after = assert_fires(fold_token_maps, graph_of(BODY + "  return %y"), 1, exact=True)
    (node,) = after.find("embedding")
    assert node.operand(1).name == "input_ids"
    assert isinstance(node.operand(0).producer.attrs["expr"], Concat)
    assert not after.find("where")


def test_tokens_past_the_table_change_nothing():
    body = BODY.replace("value = 3", "value = 99").replace("value = 5", "value = 98")
    after = assert_fires(fold_token_maps, graph_of(body + "  return %y"), 1, exact=True)
    assert str(after.find("weight")[0].attrs["expr"]) == '"w"'


def test_numbers_show_a_table_without_the_map():
    before = graph_of(BODY + "  return %y")
    after = before.clone()
    fold_token_maps(after)
    node = after.find("embedding")[0]
    attrs = before.find("weight")[0].attrs
    node.inputs[0] = after.add("weight", (), attrs, [("float32", (9, 4))], before=node).output
    (x,), (y,) = (numbers(graph, source_of(before)) for graph in (before, after))
    assert float((x - y).abs().max()) > 0.1


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("embedding(%w, %ids)", "embedding(%w, %input_ids)", "nothing is computed of the ids"),
        ("%input_ids: int64[1, seq] = input", "%position_ids: int64[1, seq] = input", "not computed of token ids"),
        ('weight() {expr = @"w"}', "input()", "not a weight of the checkpoint"),
        ("%zero: int64[] = constant() {value = 0}", "%zero: int64[] = constant() {value = 9}", "it leaves the table"),
        ("where(%either, %zero, %input_ids)", "cumsum(%input_ids) {dim = 1}", "not computed of each token id alone"),
    ],
)
def test_does_not_fire_and_says_why(old, new, reason):
    body = BODY.replace(old, new)
    assert body != BODY
    body = body.replace("%input_ids", "%position_ids") if "%position_ids" in new else body
    graph = graph_of(body + "  return %y")
    graph.drop_dead()
    assert_silent(fold_token_maps, graph)
    assert reason in closest(graph, PATTERN, lambda m: check_rows(m, graph))


def test_runs():
    assert runs_of(np.array([0, 1, 2, 0, 4, 0, 6])) == [(0, 3), (0, 1), (4, 5), (0, 1), (6, 7)]


def test_a_map_of_many_runs_stays():
    body = BODY.replace("[9, 4]", "[200, 4]").replace("where(%either, %zero, %input_ids)", "mul(%odd, %input_ids)")
    odd = "  %two: int64[] = constant() {value = 2}\n  %odd: int64[1, seq] = remainder(%input_ids, %two)\n"
    body = body.replace("  %ids:", f"{odd}  %ids:")
    graph = graph_of(body + "  return %y")
    graph.drop_dead()
    assert_silent(fold_token_maps, graph)
    assert "too many runs" in closest(graph, PATTERN, lambda m: check_rows(m, graph))
