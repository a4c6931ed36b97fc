import numpy as np
import pytest

from support.pass_graphs import LENGTH, assert_fires, assert_silent, graph_of, numbers, ops, source_of
from tensorwright.passes.recognise_query_growth import (
    PATTERN,
    TURNED,
    check,
    check_turned,
    recognise_query_growth,
)
from tensorwright.passes.rewriting.matcher import closest

HEAD = """
  %position_ids: int64[1, seq] = input()
  %k: float32[1, seq, 2, 4] = input()
  %v: float32[1, seq, 2, 4] = input()
  %two: float64[] = constant() {value = 2.0}
  %one: float64[] = constant() {value = 1.0}
  %more: float64[] = constant() {value = 0.7}
"""
GROWTH = """
  %part: float32[1, seq] = div(%position_ids, %two)
  %steps: float32[1, seq] = floor_div(%part, %one)
  %above: float32[1, seq] = add(%steps, %one)
  %log: float32[1, seq] = log(%above)
  %some: float32[1, seq] = mul(%log, %more)
  %all: float32[1, seq] = add(%some, %one)
"""
PLAIN = """
  %q: float32[1, seq, 2, 4] = input()
  %f: float32[1, seq, 1, 1] = view(%all) {shape = (1, "seq", 1, 1)}
  %grown: float32[1, seq, 2, 4] = mul(%q, %f)
"""
TURNED_BODY = """
  %q: float32[1, 2, seq, 4] = input()
  %f: float32[1, 1, seq, 1] = view(%all) {shape = (1, 1, "seq", 1)}
  %large: float32[1, 2, seq, 4] = mul(%q, %f)
  %grown: float32[1, seq, 2, 4] = transpose(%large) {dim0 = 1, dim1 = 2}
"""
REST = """
  %y: float32[1, seq, 2, 4] = attention(%grown, %k, %v) {scale = 0.5, mask = "causal", window = 0, softcap = 0.0}
  return %y
"""


def grown(body, max_seq_len=LENGTH):
    graph = graph_of(body, "fused")
    graph.facts.max_seq_len = max_seq_len
    graph.drop_dead()
    return graph


@pytest.mark.parametrize(
    "body", [PLAIN, TURNED_BODY, PLAIN.replace("mul(%q, %f)", "mul(%f, %q)")], ids=["plain", "turned", "commuted"]
)
def test_fires(body):
    after = assert_fires(recognise_query_growth, grown(HEAD + GROWTH + body + REST), 1)
    assert not after.find("log")
    (table,) = after.find("embedding")
    expected = 1 + 0.7 * np.log(1 + np.arange(LENGTH) // 2)
    np.testing.assert_allclose(table.operand(0).constant[:, 0], expected, rtol=1e-6)
    assert [op for op in ops(after) if op not in ("view", "transpose")] == [
        "embedding",
        "head_products",
        "mul",
        "attention",
    ]


def test_positions_may_be_counted():
    counted = GROWTH.replace(
        "  %part: float32[1, seq] = div(%position_ids, %two)",
        '  %index: int64[seq] = arange() {start = 0, end = "seq", step = 1, dtype = "int64"}\n'
        "  %part: float32[seq] = div(%index, %two)",
    ).replace("float32[1, seq]", "float32[seq]")
    body = HEAD + counted + PLAIN + REST
    after = assert_fires(recognise_query_growth, grown(body.replace("  return %y", "  return %y, %position_ids")), 1)
    assert after.find("embedding")[0].operand(1).name == "position_ids"


def test_queries_that_do_not_grow_yet_are_not_multiplied():
    body = (HEAD + GROWTH + PLAIN + REST).replace("{value = 2.0}", f"{{value = {float(LENGTH)}}}")
    after = assert_fires(recognise_query_growth, grown(body), 1)
    assert ops(after) == ["attention"]
    longer = grown(body, LENGTH + 1)
    assert recognise_query_growth(longer) == 1
    assert "embedding" in ops(longer)


def test_numbers_show_a_wrong_table():
    before = grown(HEAD + GROWTH + PLAIN + REST)
    after = before.clone()
    recognise_query_growth(after)
    table = after.find("embedding")[0].operand(0).producer
    table.attrs["value"] = np.roll(table.attrs["value"], 1, axis=0)
    (x,), (y,) = (numbers(graph, source_of(before)) for graph in (before, after))
    assert float((x - y).abs().max()) > 0.01


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("div(%position_ids, %two)", "cumsum(%base) {dim = 1}"),
        ("div(%position_ids, %two)", "add(%base, %two)"),
    ],
    ids=["of others", "of tokens"],
)
@pytest.mark.parametrize(
    ("body", "form", "test"), [(PLAIN, PATTERN, check), (TURNED_BODY, TURNED, check_turned)], ids=["plain", "turned"]
)
def test_what_is_not_of_each_position_alone_stays(old, new, body, form, test):
    text = (HEAD + "  %base: float32[1, seq] = input()\n" + GROWTH + body + REST).replace(old, new)
    assert_silent(recognise_query_growth, grown(text))
    assert "not computed of each position alone" in closest(grown(text), form, test)


def test_does_not_fire_where_the_grown_queries_are_used_too():
    assert_silent(
        recognise_query_growth, grown((HEAD + GROWTH + PLAIN + REST).replace("return %y", "return %y, %grown"))
    )


def test_pinned_counts(rewritten):
    assert rewritten("llama").count("recognise_query_growth") == 0
