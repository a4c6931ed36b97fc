from support.pass_graphs import assert_fires, assert_silent, graph_of, ops
from tensorwright.passes.merge_common_subexpressions import merge_common_subexpressions

TWINS = """
  %x: float32[1, seq, 4] = input()
  %a: float32[4] = weight() {expr = @"tied"}
  %b: float32[4] = weight() {expr = @"tied"}
  %p: float32[1, seq, 4] = mul(%x, %a)
  %q: float32[1, seq, 4] = mul(%x, %b)
  %y: float32[1, seq, 4] = add(%p, %q)
"""


def test_twins_and_their_twin_users_merge():
    after = assert_fires(merge_common_subexpressions, graph_of(TWINS + "  return %y"), 2, exact=True)
    assert ops(after) == ["mul", "add"]
    assert len(after.find("weight")) == 1


def test_different_types_attributes_and_constants_do_not_merge():
    assert_silent(
        merge_common_subexpressions,
        graph_of("""
          %x: float32[1, seq, 4] = input()
          %one: int64[] = constant() {value = 1}
          %real: float64[] = constant() {value = 1.0}
          %plus: float64[] = constant() {value = 0.0}
          %minus: float64[] = constant() {value = -0.0}
          %a: float32[4] = weight() {expr = @"a"}
          %b: bfloat16[4] = weight() {expr = @"a"}
          %s: float32[1, seq, 2] = slice(%x) {dim = 2, start = 0, end = 2, step = 1}
          %t: float32[1, seq, 2] = slice(%x) {dim = 2, start = 2, end = 4, step = 1}
          %p: float32[1, seq, 4] = add(%x, %plus)
          %m: float32[1, seq, 4] = add(%x, %minus)
          %i: float32[1, seq, 4] = add(%x, %one)
          %r: float32[1, seq, 4] = add(%x, %real)
          return %a, %b, %s, %t, %p, %m, %i, %r
        """),
    )


def test_two_inputs_of_one_type_are_not_one():
    assert_silent(
        merge_common_subexpressions,
        graph_of("  %x: float32[4] = input()\n  %y: float32[4] = input()\n  return %x, %y"),
    )


def test_outputs_that_merge_stay_outputs():
    after = assert_fires(merge_common_subexpressions, graph_of(TWINS + "  return %y, %q, %p"), 2, exact=True)
    assert after.outputs[1] is after.outputs[2]


def test_pinned_counts(model, rewritten):
    """A tied head shares its weight with the embedding: one more merge."""
    assert model.count("merge_common_subexpressions") == {"llama": 16, "qwen2": 17}[model.traced.name]
    assert len([n for n in rewritten("qwen2").report.graph.find("weight") if n.output.shape == (101, 32)]) == 1
