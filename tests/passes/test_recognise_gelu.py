import pytest

from support.pass_graphs import assert_fires, assert_silent, graph_of, ops
from tensorwright.passes.recognise_gelu import PATTERN, check, recognise_gelu
from tensorwright.passes.rewriting.matcher import closest

BODY = """
  %x: float32[1, seq, 6] = input()
  %half: float64[] = constant() {value = 0.5}
  %one: float64[] = constant() {value = 1.0}
  %slope: float64[] = constant() {value = 0.7978845608028654}
  %small: float64[] = constant() {value = 0.044715}
  %halved: float32[1, seq, 6] = mul(%x, %half)
  %square: float32[1, seq, 6] = mul(%x, %x)
  %cube: float32[1, seq, 6] = mul(%square, %x)
  %bent: float32[1, seq, 6] = mul(%cube, %small)
  %sum: float32[1, seq, 6] = add(%x, %bent)
  %inner: float32[1, seq, 6] = mul(%sum, %slope)
  %t: float32[1, seq, 6] = tanh(%inner)
  %more: float32[1, seq, 6] = add(%t, %one)
  %y: float32[1, seq, 6] = mul(%halved, %more)
"""


FACTORED = """
  %x: float32[1, seq, 6] = input()
  %half: float64[] = constant() {value = 0.5}
  %one: float64[] = constant() {value = 1.0}
  %slope: float64[] = constant() {value = 0.79788456}
  %small: float64[] = constant() {value = 0.044715}
  %halved: float32[1, seq, 6] = mul(%x, %half)
  %steep: float32[1, seq, 6] = mul(%x, %slope)
  %bent: float32[1, seq, 6] = mul(%x, %small)
  %square: float32[1, seq, 6] = mul(%bent, %x)
  %sum: float32[1, seq, 6] = add(%square, %one)
  %inner: float32[1, seq, 6] = mul(%steep, %sum)
  %t: float32[1, seq, 6] = tanh(%inner)
  %more: float32[1, seq, 6] = add(%t, %one)
  %y: float32[1, seq, 6] = mul(%halved, %more)
  return %y"""


def test_fires_where_the_sum_has_a_factor_of_its_own():
    assert ops(assert_fires(recognise_gelu, graph_of(FACTORED, "fused"), 1)) == ["gelu"]
    assert_silent(recognise_gelu, graph_of(FACTORED.replace("0.79788456", "0.797"), "fused"))


@pytest.mark.parametrize(("old", "new"), [("", ""), ("%x, %bent", "%bent, %x"), ("%halved, %more", "%more, %halved")])
def test_fires(old, new):
    body = BODY.replace(old, new) if old else BODY
    after = assert_fires(recognise_gelu, graph_of(body + "  return %y", "fused"), 1)
    assert ops(after) == ["gelu"]
    assert after.find("gelu")[0].attrs == {"approximate": "tanh"}


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("0.044715", "0.044", "it is not the constant 0.044715"),
        ("0.7978845608028654", "0.8", "it is not the constant 0.7978845608028654"),
        ("tanh(%inner)", "sin(%inner)", "it is not tanh"),
        ("mul(%square, %x)", "mul(%square, %square)", "it is not x"),
    ],
)
def test_does_not_fire_on_another_function(old, new, reason):
    graph = graph_of(BODY.replace(old, new) + "  return %y", "fused")
    assert_silent(recognise_gelu, graph)
    assert reason in closest(graph, PATTERN, check)


@pytest.mark.parametrize("inner", ["cube", "sum", "t", "halved"])
def test_does_not_fire_where_an_inner_value_is_used_too(inner):
    assert_silent(recognise_gelu, graph_of(BODY + f"  return %y, %{inner}", "fused"))


def test_pinned_counts(model, rewritten):
    assert model.count("recognise_gelu") == 0
    assert rewritten("gpt2").count("recognise_gelu") == 2
    assert {n.attrs["program"] for n in rewritten("gpt2").report.graph.find("elementwise")} == {"x0 gelu_tanh"}
