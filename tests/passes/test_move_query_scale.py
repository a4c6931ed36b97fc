import pytest

from support.pass_graphs import assert_fires, assert_silent, graph_of, ops
from tensorwright.passes.move_query_scale import PATTERN, check, move_query_scale
from tensorwright.passes.rewriting.matcher import closest

BODY = """
  %row: float32[1, seq, 8] = input()
  %k: float32[1, seq, 2, 4] = input()
  %v: float32[1, seq, 2, 4] = input()
  %c: float64[] = constant() {value = 0.35}
  %scaled: float32[1, seq, 8] = mul(%row, %c)
  %q: float32[1, seq, 2, 4] = view(%scaled) {shape = (1, "seq", 2, 4)}
  %y: float32[1, seq, 2, 4] = attention(%q, %k, %v) {scale = 2.0, mask = "causal", window = 0, softcap = 0.0}
"""


def test_fires():
    after = assert_fires(move_query_scale, graph_of(BODY + "  return %y", "fused"), 1)
    assert ops(after) == ["view", "attention"]
    assert after.find("attention")[0].attrs["scale"] == 0.7


@pytest.mark.parametrize("turned", ["%keys", "%turned"])
def test_a_number_moves_out_of_k_too(turned):
    more = """
  %keys: float32[1, seq, 2, 4] = mul(%k, %c)
  %table: float32[1, seq, 4] = input()
  %turned: float32[1, seq, 2, 4] = rotary(%keys, %table) {rotary_dim = 4}
  %q:"""
    body = BODY.replace("(%q, %k, %v)", f"(%q, {turned}, %v)").replace("\n  %q:", more)
    graph = graph_of(body + "  return %y", "fused")
    after = assert_fires(move_query_scale, graph, 2)
    assert after.find("attention")[0].attrs["scale"] == 2.0 * 0.35 * 0.35


@pytest.mark.parametrize(
    ("lines", "last"),
    [
        ("%heads: float32[1, seq, 2, 4] = mul(%h, %c)", "%heads"),
        (
            """%flat: float32[1, 2, seq, 4] = transpose(%h) {dim0 = 1, dim1 = 2}
  %large: float32[1, 2, seq, 4] = mul(%flat, %c)
  %heads: float32[1, seq, 2, 4] = transpose(%large) {dim0 = 1, dim1 = 2}
  %table: float32[1, seq, 4] = input()
  %turned: float32[1, seq, 2, 4] = rotary(%heads, %table) {rotary_dim = 4}""",
            "%turned",
        ),
    ],
    ids=["heads", "turned"],
)
def test_a_number_moves_out_of_the_heads_of_q(lines, last):
    body = "  %h: float32[1, seq, 2, 4] = input()\n" + BODY.replace("  %y:", f"  {lines}\n  %y:")
    graph = graph_of(body.replace("(%q, %k, %v)", f"({last}, %k, %v)") + "  return %y", "fused")
    graph.drop_dead()
    after = assert_fires(move_query_scale, graph, 1)
    assert "mul" not in ops(after)
    assert after.find("attention")[0].attrs["scale"] == 0.7


def test_sinks_and_a_cap_stay():
    body = BODY.replace("  %scaled", '  %s: float32[2] = weight() {expr = @"s"}\n  %scaled', 1)
    body = body.replace("(%q, %k, %v)", "(%q, %k, %v, %s)").replace("softcap = 0.0", "softcap = 3.0")
    after = assert_fires(move_query_scale, graph_of(body + "  return %y", "fused"), 1)
    (attention,) = after.find("attention")
    assert attention.inputs[3].name == "s"
    assert attention.attrs["softcap"] == 3.0


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("value = 0.35", "value = 0.0", "multiplied by zero"),
        ("%c: float64[] = constant() {value = 0.35}", '%c: float32[8] = weight() {expr = @"c"}', "not a scalar"),
    ],
)
def test_does_not_fire_and_says_why(old, new, reason):
    graph = graph_of(BODY.replace(old, new) + "  return %y", "fused")
    assert_silent(move_query_scale, graph)
    assert reason in closest(graph, PATTERN, check)


@pytest.mark.parametrize("inner", ["scaled", "q"])
def test_does_not_fire_where_an_inner_value_is_used_too(inner):
    graph = graph_of(BODY + f"  return %y, %{inner}", "fused")
    assert_silent(move_query_scale, graph)
    assert "also an output" in closest(graph, PATTERN, check)


def test_pinned_counts(rewritten):
    assert rewritten("opt").count("move_query_scale") == 2
    assert rewritten("llama").count("move_query_scale") == 0
