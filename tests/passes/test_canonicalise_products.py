import pytest

from support.pass_graphs import assert_fires, assert_silent, graph_of, ops
from tensorwright.passes.canonicalise_products import canonicalise_products

HEAD = """
  %q: float32[1, 2, seq, 4] = input()
  %k: float32[1, 2, seq, 4] = input()
  %v: float32[1, 2, seq, 4] = input()
  %bias: float32[2, 1, seq] = input()
  %half: float32[] = constant() {value = 0.5}
  %qf: float32[2, seq, 4] = view(%q) {shape = (2, "seq", 4)}
  %kf: float32[2, seq, 4] = view(%k) {shape = (2, "seq", 4)}
  %vf: float32[2, seq, 4] = view(%v) {shape = (2, "seq", 4)}
  %kt: float32[2, 4, seq] = transpose(%kf) {dim0 = 1, dim1 = 2}
"""
BODY = """
  %product: float32[2, seq, seq] = matmul(%qf, %kt)
  %scaled: float32[2, seq, seq] = mul(%product, %half)
  %biased: float32[2, seq, seq] = add(%scaled, %bias)
  %weights: float32[2, seq, seq] = softmax(%biased) {dim = 2}
  %y: float32[2, seq, 4] = matmul(%weights, %vf)
  return %y"""


def test_fires():
    after = assert_fires(canonicalise_products, graph_of(HEAD + BODY, "traced"), 5)
    assert ops(after) == ["transpose", "matmul", "mul", "view", "add", "softmax", "matmul", "view"]
    assert after.find("softmax")[0].attrs["dim"] == 3
    assert [n.output.shape for n in after.find("matmul")] == [(1, 2, "seq", "seq"), (1, 2, "seq", 4)]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('%qf: float32[2, seq, 4] = view(%q) {shape = (2, "seq", 4)}', "%qf: float32[2, seq, 4] = input()"),
        (
            "%q: float32[1, 2, seq, 4] = input()",
            "%q: float32[2, 1, seq, 4] = input()",
        ),
    ],
)
def test_does_not_fire(old, new):
    """One operand is no view of a value with a batch."""
    product = "  %product: float32[2, seq, seq] = matmul(%qf, %kt)\n  return %product"
    assert_silent(canonicalise_products, graph_of((HEAD + product).replace(old, new), "traced"))


def test_what_follows_no_product_stays():
    body = "  %y: float32[2, seq, 4] = mul(%qf, %half)\n  return %y"
    assert_silent(canonicalise_products, graph_of(HEAD + body, "traced"))


def test_a_product_that_is_used_elsewhere_stays_a_value():
    body = """
  %product: float32[2, seq, seq] = matmul(%qf, %kt)
  %top: float32[2, seq, 1] = amax(%product) {dims = (2,), keepdim = true}
  return %product, %top"""
    after = assert_fires(canonicalise_products, graph_of(HEAD + body, "traced"), 1)
    assert ops(after) == ["transpose", "matmul", "view", "amax"]


def test_pinned_counts(rewritten):
    assert rewritten("bloom").count("canonicalise_products") == 8
    assert rewritten("llama").count("canonicalise_products") == 0
