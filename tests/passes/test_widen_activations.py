import torch
from tolerances import rounding_tolerance

from support.pass_graphs import assert_silent, graph_of, numbers, source_of
from tensorwright.ir.verify import verify
from tensorwright.passes.widen_activations import widen_activations

BODY = """
  %x: bfloat16[1, seq, 8] = input()
  %w: bfloat16[8] = weight() {expr = @"w"}
  %c: bfloat16[8] = constant() {value = dense<float32 [8] (1, 2, 3, 4, 5, 6, 7, 8)>}
  %wide: float32[1, seq, 8] = cast(%x) {dtype = "float32"}
  %square: float32[1, seq, 8] = mul(%wide, %wide)
  %narrow: bfloat16[1, seq, 8] = cast(%square) {dtype = "bfloat16"}
  %scaled: bfloat16[1, seq, 8] = mul(%narrow, %w)
  %y: bfloat16[1, seq, 8] = add(%scaled, %c)
  return %y
"""


def test_every_value_becomes_float32_and_the_result_less_rounded():
    graph = graph_of(BODY)
    after = graph.clone()
    assert widen_activations(after) == 6
    verify(after, "traced")
    assert {v.dtype for v in after.values()} == {"float32"}
    # The same inputs, exactly: the widened graph is what rounding took from the other.
    source = source_of(graph)
    source.arrays["w"] = torch.from_numpy(source.arrays["w"]).bfloat16().float().numpy()
    before = numbers(graph, source)[0]
    wide = after.clone()
    wide.inputs[0].dtype = "bfloat16"
    exact = numbers(wide, source)[0]
    bound = rounding_tolerance("bfloat16", float(exact.abs().max()), roundings=3)
    assert 0 < float((before - exact).abs().max()) <= bound


def test_float32_stays():
    assert_silent(
        widen_activations,
        graph_of("""
          %x: float32[1, seq] = input()
          %i: int64[1, seq] = cast(%x) {dtype = "int64"}
          return %i
        """),
    )


def test_a_value_with_many_users_is_widened_for_all():
    graph = graph_of(BODY.replace("return %y", "return %y, %narrow"))
    assert widen_activations(graph) == 6
    assert [v.dtype for v in graph.outputs] == ["float32", "float32"]


def test_float16_constants_change_their_arrays():
    graph = graph_of("""
      %x: float16[4] = input()
      %c: float16[4] = constant() {value = dense<float16 [4] (1, 2, 3, 0.1)>}
      %y: float16[4] = add(%x, %c)
      return %y
    """)
    assert widen_activations(graph) == 3
    verify(graph, "traced")


def test_pinned_counts(model, rewritten):
    assert model.count("widen_activations") == 0
    assert rewritten("llama", "bfloat16").count("widen_activations") == 131
    for value in rewritten("llama", "bfloat16").report.cached_graph.values():
        assert value.dtype not in ("bfloat16", "float16")
