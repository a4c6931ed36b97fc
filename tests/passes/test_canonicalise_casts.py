from support.pass_graphs import assert_fires, assert_silent, graph_of, ops
from tensorwright.passes.canonicalise_casts import canonicalise_casts

PAIR = """
  %x: int32[1, seq] = input()
  %wide: int64[1, seq] = cast(%x) {dtype = "int64"}
  %back: int32[1, seq] = cast(%wide) {dtype = "int32"}
"""


def test_a_cast_there_and_back_is_nothing():
    after = assert_fires(canonicalise_casts, graph_of(PAIR + "  return %back"), 2, exact=True)
    assert ops(after) == []


def test_a_cast_to_the_same_type_is_nothing():
    graph = graph_of('  %x: float32[seq] = input()\n  %y: float32[seq] = cast(%x) {dtype = "float32"}\n  return %y')
    assert ops(assert_fires(canonicalise_casts, graph, 1, exact=True)) == []


def test_a_rounding_cast_stays():
    assert_silent(
        canonicalise_casts,
        graph_of("""
          %x: float32[seq] = input()
          %narrow: bfloat16[seq] = cast(%x) {dtype = "bfloat16"}
          %back: float32[seq] = cast(%narrow) {dtype = "float32"}
          return %back
        """),
    )


def test_the_inner_cast_stays_where_others_use_it():
    after = assert_fires(canonicalise_casts, graph_of(PAIR + "  return %back, %wide"), 2, exact=True)
    assert ops(after) == ["cast"]


def test_pinned_counts(model, rewritten):
    assert model.count("canonicalise_casts") == 0
    assert rewritten("llama", "bfloat16").count("canonicalise_casts") == 16
