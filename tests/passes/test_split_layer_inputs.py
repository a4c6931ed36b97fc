import pytest

from support.pass_graphs import assert_fires, assert_silent, graph_of, ops
from tensorwright.passes.rewriting.matcher import closest
from tensorwright.passes.split_layer_inputs import PATTERN, check, split_layer_inputs

# The inputs of three layers, of 4 channels each: of what a token is, and of its embedding.
BODY = """
  %ids: int64[1, seq] = input()
  %x: float32[1, seq, 6] = input()
  %c: float64[] = constant() {value = 0.7}
  %we: float32[9, 12] = weight() {expr = @"we"}
  %e: float32[1, seq, 12] = embedding(%we, %ids)
  %es: float32[1, seq, 12] = mul(%e, %c)
  %ev: float32[1, seq, 3, 4] = view(%es) {shape = (1, "seq", 3, 4)}
  %wp: float32[12, 6] = weight() {expr = @"wp"}
  %p: float32[1, seq, 12] = linear(%x, %wp)
  %pv: float32[1, seq, 3, 4] = view(%p) {shape = (1, "seq", 3, 4)}
  %wn: float32[4] = weight() {expr = @"wn"}
  %n: float32[1, seq, 3, 4] = rms_norm(%pv, %wn) {eps = 1e-05, weight_offset = 0.0}
  %sum: float32[1, seq, 3, 4] = add(%n, %ev)
  %all: float32[1, seq, 3, 4] = mul(%sum, %c)
  %y: float32[1, seq, 4] = select(%all) {dim = 2, index = 0}
  %z: float32[1, seq, 4] = select(%all) {dim = 2, index = 2}
"""
OF_EACH = ["linear", "rms_norm", "embedding", "mul", "add", "mul"]


def test_fires():
    after = assert_fires(split_layer_inputs, graph_of(BODY + "  return %y, %z", "fused"), 2)
    assert ops(after) == OF_EACH * 2
    expressions = [str(node.operand(0 if node.op == "embedding" else 1).producer.attrs["expr"])
                   for node in after.nodes if node.op in ("embedding", "linear")]  # fmt: skip
    assert expressions == [
        'slice(0, 0, 4, "wp")', 'slice(1, 0, 4, "we")', 'slice(0, 8, 12, "wp")', 'slice(1, 8, 12, "we")'
    ]  # fmt: skip


def test_what_others_read_stays_beside_the_parts():
    after = assert_fires(split_layer_inputs, graph_of(BODY + "  return %y, %z, %sum", "fused"), 2)
    assert ops(after).count("embedding") == 3


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('%wp: float32[12, 6] = weight() {expr = @"wp"}', "%wp: float32[12, 6] = input()", "not a weight"),
        ("%c: float64[] = constant() {value = 0.7}", "%c: float32[4] = input()", "not a scalar constant"),
        ("%n: float32[1, seq, 3, 4] = rms_norm(%pv, %wn) {eps = 1e-05, weight_offset = 0.0}",
         "%n: float32[1, seq, 3, 4] = relu(%pv)", "no rows that a linear or an embedding gives"),
    ],
)  # fmt: skip
def test_does_not_fire_and_says_why(old, new, reason):
    assert old in BODY
    body = BODY.replace(old, new)
    if "%c" in new:
        body = body.replace("mul(%e, %c)", "mul(%e, %k)").replace(
            "  %c:", "  %k: float64[] = constant() {value = 2.5}\n  %c:"
        )
    graph = graph_of(body + "  return %y", "fused")
    assert_silent(split_layer_inputs, graph)
    assert reason in closest(graph, PATTERN, check)


def test_pinned_counts(rewritten):
    assert rewritten("gemma4_text").count("split_layer_inputs") == 2
    assert rewritten("llama").count("split_layer_inputs") == 0
