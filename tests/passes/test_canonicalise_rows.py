import pytest

from support.pass_graphs import assert_fires, assert_silent, graph_of, ops
from tensorwright.passes.canonicalise_rows import canonicalise_rows

HEAD = """
  %x: float32[1, seq, 8] = input()
  %other: float32[seq, 8] = input()
  %flat: float32[seq, 8] = view(%x) {shape = ("seq", 8)}
"""
MUL = "  %y: float32[seq, 8] = mul(%flat, %other)\n"


def test_fires():
    after = assert_fires(canonicalise_rows, graph_of(HEAD + MUL + "  return %y", "fused"), 1)
    assert ops(after) == ["view", "mul", "view"]
    assert after.find("mul")[0].output.shape == (1, "seq", 8)


def test_each_op_shows_the_next():
    body = (
        HEAD
        + MUL
        + """
  %first: float32[seq, 3] = slice(%y) {dim = 1, end = 3, start = 0, step = 1}
  %both: float32[seq, 11] = concat(%first, %y) {dim = 1}
  %half: float32[] = constant() {value = 0.5}
  %z: float32[seq, 11] = mul(%both, %half)
  return %z"""
    )
    after = assert_fires(canonicalise_rows, graph_of(body, "fused"), 4)
    assert ops(after) == ["view", "mul", "slice", "concat", "mul", "view"]
    assert [after.find(op)[0].attrs["dim"] for op in ("slice", "concat")] == [2, 2]


@pytest.mark.parametrize(
    "body",
    [
        "  %y: float32[seq, 8] = mul(%other, %other)\n",
        "  %y: float32[seq, 8] = softmax(%flat) {dim = 1}\n",
        "  %y: float32[2*seq, 8] = concat(%flat, %other) {dim = 0}\n",
    ],
)
def test_does_not_fire(body):
    """There are no rows with the batch, rows are summed over, or they are more than there were."""
    assert_silent(canonicalise_rows, graph_of(HEAD + body + "  return %y", "fused"))


def test_a_value_that_is_used_elsewhere_stays():
    body = HEAD + MUL + "  %z: float32[seq, 1] = sum(%y) {dims = (1,), keepdim = true}\n  return %y, %z"
    after = assert_fires(canonicalise_rows, graph_of(body, "fused"), 1)
    assert ops(after) == ["view", "mul", "view", "sum"]


def test_pinned_counts(rewritten):
    assert rewritten("qwen2_moe").count("canonicalise_rows") > 0
    assert rewritten("llama").count("canonicalise_rows") == 0
