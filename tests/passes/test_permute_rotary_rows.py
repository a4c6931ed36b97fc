import pytest

from support.pass_graphs import assert_fires, assert_silent, graph_of, ops
from tensorwright.passes.permute_rotary_rows import PATTERN, SCORES, check, check_scores, permute_rotary_rows
from tensorwright.passes.rewriting.matcher import closest

SPLIT = "dense<int64 [8] (0, 2, 4, 1, 3, 5, 6, 7)>"
BACK = "dense<int64 [8] (0, 3, 1, 4, 2, 5, 6, 7)>"
HEADS = """
  %{n}_row: float32[1, seq, 24] = linear(%x, %w{n}{bias})
  %{n}_view: float32[1, seq, 3, 8] = view(%{n}_row) {{shape = (1, "seq", 3, 8)}}
  %{n}_split: float32[1, seq, 3, 8] = index(%{n}_view, none, none, none, %there)
  %{n}_turned: float32[1, seq, 3, 8] = {op}(%{n}_split)
  %{n}: float32[1, seq, 3, 8] = index(%{n}_turned, none, none, none, %back)
"""
BODY = (
    f"""
  %x: float32[1, seq, 5] = input()
  %v: float32[1, seq, 3, 8] = input()
  %there: int64[8] = constant() {{value = {SPLIT}}}
  %back: int64[8] = constant() {{value = {BACK}}}
  %wq: float32[24, 5] = weight() {{expr = @"q"}}
  %bq: float32[24] = weight() {{expr = @"bias"}}
  %wk: float32[24, 5] = weight() {{expr = @"k"}}
"""
    + HEADS.format(n="q", bias=", %bq", op="sigmoid")
    + HEADS.format(n="k", bias="", op="tanh")
    + """
  %y: float32[1, seq, 3, 8] = attention(%q, %k, %v) {scale = 0.3, mask = "causal", window = 0, softcap = 0.0}
"""
)


def test_fires():
    """Whatever stands between the permutations, here no rotary at all, the numbers stay."""
    after = assert_fires(permute_rotary_rows, graph_of(BODY + "  return %y", "fused"), 2)
    assert ops(after) == ["linear", "view", "sigmoid", "linear", "view", "tanh", "attention"]


def test_fires_where_every_column_turns():
    whole = BODY.replace(SPLIT, "dense<int64 [8] (0, 2, 4, 6, 1, 3, 5, 7)>")
    whole = whole.replace(BACK, "dense<int64 [8] (0, 4, 1, 5, 2, 6, 3, 7)>")
    after = assert_fires(permute_rotary_rows, graph_of(whole + "  return %y", "fused"), 2)
    assert "index" not in ops(after)


@pytest.mark.parametrize(
    ("old", "new", "count", "rule", "reason"),
    [
        ("index(%k_turned, none, none, none, %back)", "index(%k_turned, none, none, none, %there)", 2,
         (SCORES, check_scores), "it is not order again"),
        (BACK, "dense<int64 [8] (0, 3, 1, 4, 2, 5, 6, 6)>", 2, (SCORES, check_scores), "not every column comes once"),
        (SPLIT, "dense<int64 [8] (1, 0, 2, 3, 4, 5, 6, 7)>", 0, (PATTERN, check), "pairs split into halves"),
        ('weight() {expr = @"q"}', "input()", 1, (PATTERN, check), "not a weight"),
    ],
)  # fmt: skip
def test_does_not_fire_and_says_why(old, new, count, rule, reason):
    """Each part of the pass alone: the permutations of scores, or of weights, are gone and the others stay."""
    assert old in BODY
    left = graph_of(BODY.replace(old, new) + "  return %y", "fused")
    after = assert_fires(permute_rotary_rows, left, count)
    assert "index" in ops(after)
    assert reason in closest(after, *rule)


@pytest.mark.parametrize("inner", ["q_view", "k_row"])
def test_does_not_fire_where_an_inner_value_is_used_too(inner):
    after = assert_fires(permute_rotary_rows, graph_of(BODY + f"  return %y, %{inner}", "fused"), 1)
    assert "also an output" in closest(after, PATTERN, check)


def test_scores_keep_permutations_that_somebody_else_reads():
    graph = graph_of(BODY + "  return %y, %q", "fused")
    after = assert_fires(permute_rotary_rows, graph, 2)
    assert "also an output" in closest(after, SCORES, check_scores)


def test_silent_without_permutations():
    body = BODY.replace("index(%q_view, none, none, none, %there)", "sigmoid(%q_view)")
    for text in (
        "%k_view, none, none, none, %there",
        "%q_turned, none, none, none, %back",
        "%k_turned, none, none, none, %back",
    ):
        body = body.replace(f"index({text})", f"tanh({text.split(',')[0]})")
    assert_silent(permute_rotary_rows, graph_of(body + "  return %y", "fused"))


@pytest.mark.parametrize("variant", ["glm", "ernie4_5"])
def test_pinned_counts(rewritten, variant):
    assert rewritten(variant).count("permute_rotary_rows") == 4
    assert rewritten("llama").count("permute_rotary_rows") == 0
