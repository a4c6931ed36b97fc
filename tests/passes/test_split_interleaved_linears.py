import pytest

from support.pass_graphs import assert_fires, assert_silent, graph_of, ops
from tensorwright.passes.rewriting.matcher import closest
from tensorwright.passes.split_interleaved_linears import PATTERN, check_slice, split_interleaved_linears

BODY = """
  %x: float32[1, seq, 6] = input()
  %w: float32[24, 6] = weight() {expr = @"w"}
  %b: float32[24] = weight() {expr = @"b"}
  %y: float32[1, seq, 24] = linear(%x, %w, %b) in attn.qkv
"""
GROUPS = '  %h: float32[1, seq, 2, 4, 3] = view(%y) {shape = (1, "seq", 2, 4, 3)}\n'
QUERY = "  %q: float32[1, seq, 2, 2, 3] = slice(%h) {dim = 3, start = 0, end = 2, step = 1}\n"
KEY = "  %k: float32[1, seq, 2, 1, 3] = slice(%h) {dim = 3, start = 2, end = 3, step = 1}\n"
VALUE = "  %v: float32[1, seq, 2, 3] = select(%h) {dim = 3, index = 3}\n"


@pytest.mark.parametrize("bias", [True, False])
def test_fires(bias):
    body = BODY if bias else BODY.replace("%w, %b", "%w")
    graph = graph_of(body + GROUPS + QUERY + KEY + VALUE + "  return %q, %k, %v", "fused")
    graph.drop_dead()
    after = assert_fires(split_interleaved_linears, graph, 3)
    assert ops(after) == ["linear", "view"] * 3
    exprs = [str(n.inputs[1].node.attrs["expr"]) for n in after.find("linear")]
    assert exprs[1] == 'reshape([6, 6], slice(1, 2, 3, reshape([2, 4, 3, 6], "w")))'
    assert {n.scope for n in after.find("linear")} == {"attn.qkv"}


def test_fires_where_heads_are_turned_before_the_slices():
    """[1, S, H, 3 D] -> [1, H, S, 3 D] -> three of [1, H, S, D]"""
    turned = '  %h: float32[1, seq, 2, 12] = view(%y) {shape = (1, "seq", 2, 12)}\n'
    turned += "  %t: float32[1, 2, seq, 12] = transpose(%h) {dim0 = 1, dim1 = 2}\n"
    for i, name in enumerate("qkv"):
        ends = f"start = {4 * i}, end = {4 * i + 4}"
        turned += f"  %{name}: float32[1, 2, seq, 4] = slice(%t) {{dim = 3, {ends}, step = 1}}\n"
    after = assert_fires(split_interleaved_linears, graph_of(BODY + turned + "  return %q, %k, %v", "fused"), 3)
    assert ops(after) == ["linear", "view", "transpose"] * 3


def test_does_not_fire_on_slices_of_tokens():
    body = (
        BODY + GROUPS + '  %q: float32[1, seq - 1, 2, 4, 3] = slice(%h) {dim = 1, start = 1, end = "seq", step = 1}\n'
    )
    graph = graph_of(body + "  return %q", "fused")
    assert_silent(split_interleaved_linears, graph)
    assert "not within what was side by side" in closest(graph, PATTERN, check_slice)


def test_does_not_fire_without_a_view():
    """Parts that already lie one after the other stay one linear."""
    body = BODY + "  %q: float32[1, seq, 8] = slice(%y) {dim = 2, start = 0, end = 8, step = 1}\n"
    assert_silent(split_interleaved_linears, graph_of(body + "  return %q", "fused"))


def test_does_not_fire_on_what_is_no_weight():
    body = BODY.replace('= weight() {expr = @"w"}', "= input()") + GROUPS + QUERY
    graph = graph_of(body + "  return %q", "fused")
    assert_silent(split_interleaved_linears, graph)
    assert "not a weight" in closest(graph, PATTERN, check_slice)


@pytest.mark.parametrize(
    "user", ["  return %q, %h", "  %n: float32[1, seq, 2, 4, 3] = neg(%h)\n  return %q, %n"], ids=["output", "op"]
)
def test_does_not_fire_where_all_heads_are_used_too(user):
    """The halves that a rotation takes of each head are not parts of the linear."""
    assert_silent(split_interleaved_linears, graph_of(BODY + GROUPS + QUERY + user, "fused"))


def test_pinned_counts(rewritten):
    assert rewritten("llama").count("split_interleaved_linears") == 0
    for variant in ("falcon", "falcon_groups", "falcon_serial"):
        assert rewritten(variant).count("split_interleaved_linears") == 6
