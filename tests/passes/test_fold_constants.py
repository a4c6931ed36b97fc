import numpy as np

from support.pass_graphs import assert_fires, assert_silent, graph_of, ops
from tensorwright.passes.fold_constants import LIMIT, fold_constants

CHAIN = """
  %x: float32[1, seq, 4] = input()
  %c: float32[4] = constant() {value = dense<float32 [4] (0.1, 0.2, 0.3, 0.4)>}
  %v: float32[1, 1, 4] = view(%c) {shape = (1, 1, 4)}
  %two: float32[1, 1, 4] = mul(%v, %v)
  %y: float32[1, seq, 4] = mul(%x, %two)
"""


def test_a_chain_of_constants_is_one_constant():
    after = assert_fires(fold_constants, graph_of(CHAIN + "  return %y"), 2, exact=True)
    assert ops(after) == ["mul"]
    (constant,) = after.find("constant")
    assert np.array_equal(constant.attrs["value"], (np.float32([0.1, 0.2, 0.3, 0.4]) ** 2).reshape(1, 1, 4))


def test_a_folded_scalar_still_counts_as_a_tensor_in_promotion():
    """A Python number would let the int64 tensor decide the type."""
    graph = graph_of("""
      %x: int64[seq] = input()
      %zero: float32[] = full() {shape = (), value = 0.5, dtype = "float32"}
      %y: float32[seq] = add(%x, %zero)
      return %y
    """)
    assert ops(assert_fires(fold_constants, graph, 1, exact=True)) == ["add"]


def test_large_symbolic_or_dependent_results_stay():
    assert_silent(
        fold_constants,
        graph_of(f"""
          %x: float32[1, seq] = input()
          %w: float32[4] = weight() {{expr = @"w"}}
          %w2: float32[4] = mul(%w, %w)
          %large: float32[{LIMIT + 1}] = full() {{shape = ({LIMIT + 1},), value = 1.0, dtype = "float32"}}
          %count: int64[seq] = arange() {{start = 0, end = "seq", step = 1, dtype = "int64"}}
          %y: float32[1, seq] = add(%x, %count)
          return %y, %w2, %large
        """),
    )


def test_a_folded_value_with_other_users_serves_them_all():
    after = assert_fires(fold_constants, graph_of(CHAIN + "  return %y, %two, %v"), 2, exact=True)
    assert len(after.find("constant")) == 2


def test_pinned_counts(model):
    assert model.count("fold_constants") == 4
