import pytest

from support.pass_graphs import assert_fires, assert_silent, graph_of, ops
from tensorwright.passes.canonicalise_masks import MIXED as MIXED_FORM
from tensorwright.passes.canonicalise_masks import PATTERN, canonicalise_masks, check, check_mixed
from tensorwright.passes.rewriting.matcher import closest

HEAD = """
  %scores: float32[1, 2, seq, seq] = input()
  %other: float32[1, 1, seq, seq] = input()
  %index: int64[seq] = arange() {start = 0, end = "seq", step = 1, dtype = "int64"}
  %key: int64[1, 1, 1, seq] = view(%index) {shape = (1, 1, 1, "seq")}
  %query: int64[1, 1, seq, 1] = view(%index) {shape = (1, 1, "seq", 1)}
  %low: float64[] = constant() {value = -3.4e38}
  %zero: float32[] = constant() {value = 0.0}
  %number: float64[] = constant() {value = 0.7}
  %seen: bool[1, 1, seq, seq] = le(%key, %query)
  %hidden: bool[1, 1, seq, seq] = gt(%key, %query)
  %bias: float32[1, 1, 1, seq] = mul(%key, %number)
  %mask: float32[1, 1, seq, seq] = where(%seen, %zero, %low)
"""
SOFTMAX = """
  %y: float32[1, 2, seq, seq] = softmax(%masked) {dim = 3}
  return %y"""
TYPE = "float32[1, 2, seq, seq]"
FORMS = {
    "chosen": f"  %masked: {TYPE} = where(%seen, %scores, %low)\n",
    "filled": f"  %masked: {TYPE} = where(%hidden, %low, %scores)\n",
    "filled twice": f"  %once: {TYPE} = where(%hidden, %low, %scores)\n  %masked: {TYPE} = add(%once, %mask)\n",
    "sums": f"  %once: {TYPE} = add(%scores, %bias)\n  %masked: {TYPE} = add(%mask, %once)\n",
    "scaled": f"""
  %once: {TYPE} = add(%scores, %bias)
  %twice: {TYPE} = mul(%once, %number)
  %masked: {TYPE} = add(%twice, %mask)
""",
    "bounded by a filled number": f"""
  %least: float32[] = full() {{shape = (), value = -3.4e38, dtype = "float32"}}
  %once: {TYPE} = add(%scores, %mask)
  %masked: {TYPE} = maximum(%once, %least)
""",
    "bounded": f"  %once: {TYPE} = add(%scores, %mask)\n  %masked: {TYPE} = maximum(%once, %low)\n",
}


@pytest.mark.parametrize("form", FORMS)
def test_fires(form):
    after = assert_fires(canonicalise_masks, graph_of(HEAD + FORMS[form] + SOFTMAX, "traced"), 1)
    total = after.find("softmax")[0].operand(0).producer
    assert total.op == "add"
    assert ops(after)[-2:] == ["add", "softmax"]
    assert "maximum" not in ops(after)


def test_several_forms_become_one_sum():
    body = f"""
  %biased: {TYPE} = add(%scores, %bias)
  %once: {TYPE} = where(%hidden, %low, %biased)
  %masked: {TYPE} = add(%once, %mask)
"""
    after = assert_fires(canonicalise_masks, graph_of(HEAD + body + SOFTMAX, "traced"), 2)
    assert after.find("softmax")[0].operand(0).producer.operand(0).name == "scores"


@pytest.mark.parametrize(
    ("form", "old", "new"),
    [
        ("chosen", "-3.4e38", "-9.0"),
        ("bounded", "-3.4e38", "-9.0"),
        ("sums", "%bias)", "%other)"),
        ("scaled", "%bias)", "%other)"),
    ],
)
def test_does_not_fire(form, old, new):
    """The number hides no score, or what is added is not of positions alone."""
    assert_silent(canonicalise_masks, graph_of((HEAD + FORMS[form] + SOFTMAX).replace(old, new), "traced"))


MIXED = """
  %scores: float32[1, 2, 2, 2] = input()
  %square: float32[1, 1, 3, 3] = constant() {value = dense<float32 [1, 1, 3, 3] (1, 0, 0, 1, 1, 0, 1, 1, 1)>}
  %columns: float32[1, 1, 3, 2] = slice(%square) {dim = 3, start = 0, end = 2, step = 1}
  %b: float32[1, 1, 2, 2] = slice(%columns) {dim = 2, start = 0, end = 2, step = 1}
  %one: float64[] = constant() {value = 1}
  %low: float64[] = constant() {value = -10000.0}
  %kept: float32[1, 2, 2, 2] = mul(%scores, %b)
  %rest: float32[1, 1, 2, 2] = sub(%one, %b)
  %lost: float32[1, 1, 2, 2] = mul(%rest, %low)
  %masked: float32[1, 2, 2, 2] = add(%kept, %lost)
  %y: float32[1, 2, 2, 2] = softmax(%masked) {dim = 3}
  return %y"""


def test_a_mask_that_scores_are_multiplied_by():
    after = assert_fires(canonicalise_masks, graph_of(MIXED, "traced"), 1)
    assert ops(after) == ["slice", "slice", "eq", "where", "add", "softmax"]


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("-10000.0", "-9999.0", "does not hide a score"),
        ("(1, 0, 0, 1, 1, 0,", "(1, 0.5, 0, 1, 1, 0,", "neither 0 nor 1"),
        ("= slice(%columns) {dim = 2, start = 0, end = 2, step = 1}", "= relu(%first)", "it is computed"),
    ],
)
def test_what_is_no_such_mask_stays(old, new, reason):
    assert old in MIXED
    first = "  %first: float32[1, 1, 2, 2] = slice(%columns) {dim = 2, start = 0, end = 2, step = 1}\n  %b:"
    graph = graph_of(MIXED.replace(old, new).replace("  %b:", first if "relu" in new else "  %b:"), "traced")
    assert_silent(canonicalise_masks, graph)
    assert reason in closest(graph, MIXED_FORM, check_mixed)


def test_scores_that_are_used_elsewhere_stay():
    body = HEAD + FORMS["sums"] + SOFTMAX.replace("return %y", "return %y, %once")
    graph = graph_of(body, "traced")
    assert_silent(canonicalise_masks, graph)
    assert "it is also an output of the graph" in closest(graph, PATTERN, check)


def test_pinned_counts(rewritten):
    assert rewritten("bloom").count("canonicalise_masks") == 2
    assert rewritten("mpt").count("canonicalise_masks") == 4
    assert rewritten("llama").count("canonicalise_masks") == 0
