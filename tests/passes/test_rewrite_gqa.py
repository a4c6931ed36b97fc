import pytest

from support.pass_graphs import assert_fires, assert_silent, graph_of, ops
from tensorwright.passes.rewrite_gqa import PATTERN, check, rewrite_gqa
from tensorwright.passes.rewriting.matcher import closest

ATTRS = '{scale = 0.5, mask = "causal", window = 0, softcap = 0.0}'


def repeat(name, column="1, 2, 1, seq, 4", groups="1, 2, 3, seq, 4"):
    """Two KV heads for six query heads."""
    column_attr, groups_attr = (text.replace("seq", '"seq"') for text in (column, groups))
    return (
        f"  %{name}: float32[1, 2, seq, 4] = input()\n"
        f"  %{name}1: float32[{column}] = view(%{name}) {{shape = ({column_attr})}}\n"
        f"  %{name}2: float32[{groups}] = expand(%{name}1) {{shape = ({groups_attr})}}\n"
        f'  %{name}3: float32[1, 6, seq, 4] = view(%{name}2) {{shape = (1, 6, "seq", 4)}}\n'
        f"  %{name}4: float32[1, seq, 6, 4] = transpose(%{name}3) {{dim0 = 1, dim1 = 2}}\n"
    )


Q = "  %q: float32[1, seq, 6, 4] = input()\n"
Y = f"  %y: float32[1, seq, 6, 4] = attention(%q, %k4, %v4) {ATTRS}\n"
BODY = Q + repeat("k") + repeat("v") + Y


def test_fires_and_keeps_the_head_map():
    after = assert_fires(rewrite_gqa, graph_of(BODY + "  return %y", "fused"), 1, exact=True)
    assert ops(after) == ["transpose", "transpose", "attention"]
    assert after.find("attention")[0].inputs[1].shape == (1, "seq", 2, 4)


def test_layers_that_share_their_keys_and_values():
    second = (
        "  %r: float32[1, seq, 6, 4] = input()\n"
        + "".join(f"  %{name}5: float32[1, seq, 6, 4] = transpose(%{name}3) {{dim0 = 1, dim1 = 2}}\n" for name in "kv")
        + Y.replace("%y", "%z").replace("%q", "%r").replace("4, %v4", "5, %v5")
    )
    after = assert_fires(rewrite_gqa, graph_of(BODY + second + "  return %y, %z", "fused"), 2, exact=True)
    assert [n.inputs[1].shape for n in after.find("attention")] == [(1, "seq", 2, 4)] * 2


def test_one_kv_head():
    body = BODY.replace("1, 2, seq, 4", "1, 1, seq, 4").replace("1, 2, 1,", "1, 1, 1,").replace("1, 2, 3,", "1, 1, 6,")
    assert_fires(rewrite_gqa, graph_of(body + "  return %y", "fused"), 1, exact=True)


def test_heads_dealt_out_in_turn_are_another_map():
    """Query head h would read KV head h % Hkv: no attention of ours means that."""
    tiled = {"column": "1, 1, 2, seq, 4", "groups": "1, 3, 2, seq, 4"}
    graph = graph_of(Q + repeat("k", **tiled) + repeat("v", **tiled) + Y + "  return %y", "fused")
    assert_silent(rewrite_gqa, graph)
    assert "needs" in closest(graph, PATTERN, check) or "shape" in closest(graph, PATTERN, check)


def repeat_first(name, groups="2, 3"):
    """The same heads repeated before k turns."""
    return (
        f"  %{name}1: float32[1, seq, 2, 1, 4] = input()\n"
        f'  %{name}2: float32[1, seq, {groups}, 4] = expand(%{name}1) {{shape = (1, "seq", {groups}, 4)}}\n'
        f'  %{name}3: float32[1, seq, 6, 4] = view(%{name}2) {{shape = (1, "seq", 6, 4)}}\n'
    )


TURNED = """  %table: float32[1, seq, 4] = input()
  %kr: float32[1, seq, 6, 4] = rotary(%k3, %table) {rotary_dim = 4}
"""
FIRST = Q + repeat_first("k") + repeat_first("v") + TURNED + Y.replace("%k4, %v4", "%kr, %v3")


@pytest.mark.parametrize("rotated", [True, False])
def test_heads_repeated_before_they_turn(rotated):
    body = FIRST if rotated else FIRST.replace(TURNED, "").replace("%kr", "%k3")
    after = assert_fires(rewrite_gqa, graph_of(body + "  return %y", "fused"), 1, exact=True)
    assert "expand" not in ops(after)
    assert after.find("attention")[0].inputs[1].shape == (1, "seq", 2, 4)


@pytest.mark.parametrize("inner", ["kr", "k3", "v2"])
def test_does_not_fire_where_heads_repeated_first_are_used_too(inner):
    assert_silent(rewrite_gqa, graph_of(FIRST + f"  return %y, %{inner}", "fused"))


def test_does_not_fire_on_as_many_kv_heads():
    plain = Q + f"  %k: float32[1, seq, 6, 4] = input()\n  %y: float32[1, seq, 6, 4] = attention(%q, %k, %k) {ATTRS}\n"
    assert_silent(rewrite_gqa, graph_of(plain + "  return %y", "fused"))


def test_does_not_fire_if_only_keys_repeat():
    body = Q + repeat("k") + "  %v4: float32[1, seq, 6, 4] = input()\n" + Y
    assert_silent(rewrite_gqa, graph_of(body + "  return %y", "fused"))


@pytest.mark.parametrize("inner", ["k2", "v2", "v4"])
def test_does_not_fire_where_the_repeated_heads_are_used_too(inner):
    assert_silent(rewrite_gqa, graph_of(BODY + f"  return %y, %{inner}", "fused"))


def test_pinned_counts(model, rewritten):
    assert model.count("rewrite_gqa") == 2
    assert rewritten("llama_mqa").count("rewrite_gqa") == 2
    assert rewritten("llama_mha").count("rewrite_gqa") == 0
    assert rewritten("falcon_groups").count("rewrite_gqa") == 2
    assert "expand" not in ops(model.report.cached_graph)
