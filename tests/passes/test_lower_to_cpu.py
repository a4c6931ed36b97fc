import pytest
import torch
from tolerances import chain_tolerance

from support.pass_graphs import graph_of, ops, source_of
from tensorwright.builder.checkpoint_weights import checkpoint_weights
from tensorwright.engine_format.weight_layouts import PANELS, RAW, gated
from tensorwright.errors import LoweringError, UnsupportedModelError
from tensorwright.ir.interpret import interpret
from tensorwright.ir.ragged import interpret_ragged
from tensorwright.ir.verify import verify
from tensorwright.passes.lower_to_cpu import lower_to_cpu
from tensorwright.plugins.matmul.op import EPILOGUE_NONE, EPILOGUES

HEAD = """
  %token_ids: int32[tokens] = input()
  %table: float32[20, 8] = weight() {expr = @"table"} in embed
  %x: float32[tokens, 8] = embedding(%table, %token_ids) {scale = 1.0} in embed
  %wn: float32[8] = weight() {expr = @"wn"} in norm
  %n: float32[tokens, 8] = rms_norm(%x, %wn) {eps = 1e-05, weight_offset = 0.0} in norm
  %wg: float32[12, 8] = weight() {expr = @"wg"} in mlp
  %bg: float32[12] = weight() {expr = @"bg"} in mlp
  %gu: float32[tokens, 12] = linear(%n, %wg, %bg) in mlp
"""
SWIGLU = '  %s: float32[tokens, 6] = swiglu(%gu) {activation = "silu"} in mlp\n'
DOWN = """
  %wd: float32[8, 6] = weight() {expr = @"wd"} in mlp
  %d: float32[tokens, 8] = linear(%s, %wd) in mlp
"""
SUM = "  %y: float32[tokens, 8] = add(%x, %d) in layer\n"
BODY = HEAD + SWIGLU + DOWN + SUM


def cached(body=BODY, tail="  return %y", dtype="float32"):
    graph = graph_of(body + tail, "cached")
    graph.facts.dtype = dtype
    graph.drop_dead()
    return graph


def lowered(*args, **kwargs):
    graph = cached(*args, **kwargs)
    lower_to_cpu(graph)
    verify(graph, "lowered")
    return graph


def test_epilogues_are_folded():
    graph = cached()
    assert lower_to_cpu(graph) == 4
    verify(graph, "lowered")
    assert ops(graph) == ["embedding", "rms_norm", "matmul", "matmul"]
    gate_up, down = graph.find("matmul")
    assert gate_up.attrs == {"epilogue": EPILOGUES["silu"], "n": 6}
    assert gate_up.inputs[1].node.attrs["layout"] == gated(PANELS)
    assert gate_up.inputs[2].node.attrs["layout"] == RAW
    assert down.attrs == {"epilogue": EPILOGUE_NONE, "n": 8}
    assert down.inputs[3] is graph.find("embedding")[0].output


@pytest.mark.parametrize("inner", ["gu", "d"])
def test_an_inner_value_that_others_read_is_not_folded(inner):
    extra = '  %w2: float32[12] = weight() {expr = @"w2"}\n  %z: float32[tokens, 12] = add(%gu, %gu)\n'
    extra = extra if inner == "gu" else "  %z: float32[tokens, 8] = add(%d, %d)\n"
    graph = lowered(BODY + extra, "  return %y, %z")
    expected = {
        "gu": ["embedding", "rms_norm", "matmul", "swiglu", "matmul", "add"],
        "d": ["embedding", "rms_norm", "matmul", "matmul", "add", "add"],
    }
    assert ops(graph) == expected[inner]


def test_a_tree_of_elementwise_ops_is_one_instruction():
    """Producers with one user join; a number and a vector are operands; what others read stays apart."""
    tree = """
  %c: float64[] = constant() {value = 30.0}
  %t: float32[tokens, 12] = tanh(%gu) in act
  %m: float32[tokens, 12] = mul(%t, %c) in act
  %v: float32[12] = weight() {expr = @"bg"}
  %z: float32[tokens, 12] = add(%m, %v) in act
"""
    graph = lowered(HEAD + tree, "  return %z")
    (node,) = graph.find("elementwise")
    assert node.attrs["program"] == "x0 tanh 30.0 mul w add"
    assert [v is not None for v in node.inputs] == [True, False, False, False, True]
    shared = lowered(HEAD + tree + "  %o: float32[tokens, 12] = neg(%t) in act\n", "  return %z, %o")
    assert sorted(n.attrs["program"] for n in shared.find("elementwise")) == ["x0 30.0 mul w add", "x0 neg", "x0 tanh"]


def test_what_is_computed_of_a_stored_vector_is_computed_in_every_tree_that_reads_it():
    tree = """
  %v: float32[12] = weight() {expr = @"bg"}
  %s: float32[12] = softplus(%v) in act
  %m: float32[tokens, 12] = mul(%gu, %s) in act
  %z: float32[tokens, 12] = tanh(%m) in act
  %o: float32[tokens, 12] = add(%gu, %s) in act
"""
    graph = lowered(HEAD + tree, "  return %z, %o")
    assert [n.attrs["program"] for n in graph.find("elementwise")] == ["x0 w softplus mul tanh", "x0 w softplus add"]


@pytest.mark.parametrize(
    ("limits", "program"),
    [
        ("min = -7.0, max = 7.0", "7.0 -7.0 x0 maximum minimum softplus"),
        ("min = none, max = 7.0", "7.0 x0 minimum softplus"),
        ("min = 0.5, max = none", "0.5 x0 maximum softplus"),
    ],
)
def test_a_clamp_is_a_part_of_a_tree(limits, program):
    tree = """
  %c: float32[tokens, 12] = clamp(%gu) {LIMITS} in act
  %z: float32[tokens, 12] = softplus(%c) in act
"""
    graph = lowered(HEAD + tree.replace("LIMITS", limits), "  return %z")
    assert [node.attrs["program"] for node in graph.find("elementwise")] == [program]


MIXTURE = """
  %logits: float32[tokens, 5] = linear(%n, %wr)
  %index: int32[tokens, 2], %share: float32[tokens, 2] = route(%logits) {k = 2, normalise = true}
  %up: float32[3, 8, 8] = weight() {expr = @"up"}
  %down: float32[3, 8, 4] = weight() {expr = @"down"}
  %y: float32[tokens, 8] = experts(%n, %index, %share, %up, %down) {activation = "silu", identities = 2}
"""
ROUTER = '  %wr: float32[5, 8] = weight() {expr = @"wr"}\n'


def test_identities_are_a_number_of_the_instruction_of_experts():
    (node,) = lowered(HEAD + ROUTER + MIXTURE, "  return %y").find("experts")
    assert (node.attrs["experts"], node.attrs["identities"]) == (3, 2)
    limited = MIXTURE.replace("identities = 2", "identities = 2, limit = 7.0")
    with pytest.raises(LoweringError, match="has identities beside experts with biases or a gate of their own"):
        lower_to_cpu(cached(HEAD + ROUTER + limited, "  return %y"))


def test_a_route_with_numbers_of_experts_has_the_instruction_with_all_attributes():
    scales = '  %scales: float32[5] = weight() {expr = @"scales"}\n'
    routed = MIXTURE.replace("route(%logits)", "route(%logits, none, %scales)")
    graph = lowered(HEAD + ROUTER + scales + routed, "  return %y")
    (node,) = graph.find("route_by_score")
    assert (node.attrs["k"], node.attrs["normalise"], node.attrs["score"]) == (2, True, "softmax")
    assert node.inputs[1] is None
    assert node.operand(2).dtype == "float32"
    assert list(node.operand(2).producer.attrs["expr"].refs()) == ["scales"]
    assert not list(graph.find("route"))


def test_layer_norms_are_one_instruction():
    """With and without a sum and a bias, of whole rows and of columns; weights of every head become one vector."""
    norms = """
  %w: float32[8] = weight() {expr = @"w"}
  %h: float32[2, 3] = weight() {expr = @"h"}
  %n1: float32[tokens, 8] = layer_norm(%x, %wn, %w) {NORM} in a
  %n2: float32[tokens, 8], %s: float32[tokens, 8] = add_layer_norm(%n1, %x, %wn) {NORM} in b
  %n3: float32[tokens, 8] = layer_norm_columns(%n2, %h, %h) {start = 1, heads = 2, width = 3, NORM} in c
"""
    body = HEAD[: HEAD.index("  %n:")] + norms.replace("NORM", "eps = 1e-05, weight_offset = 0.0")
    graph = lowered(body, "  return %n3, %s")
    first, second, third = graph.find("layer_norm")
    assert [v and v.node.op for v in first.inputs[1:]] == ["weight", "weight", None]
    assert [v is None for v in second.inputs] == [False, False, True, False]
    assert [v.shape for v in third.inputs[1:3]] == [(6,), (6,)]
    assert str(third.inputs[1].node.attrs["expr"]).startswith("reshape(")
    whole = {"start": 0, "heads": 1, "width": 8, "eps": 1e-5, "weight_offset": 0.0}
    assert first.attrs == second.attrs == whole
    assert third.attrs == {**whole, "start": 1, "heads": 2, "width": 3}


def test_a_scaled_embedding_is_one_instruction():
    scaled = "  %c: float64[] = constant() {value = 3.0}\n  %s: float32[tokens, 8] = mul(%x, %c)\n"
    body = HEAD[: HEAD.index("%x")] + HEAD[HEAD.index("%x") :].split("\n")[0] + "\n" + scaled
    graph = lowered(body, "  return %s")
    assert ops(graph) == ["embedding"]
    assert graph.find("embedding")[0].attrs == {"ids": 0, "first": 0, "rows": 0, "scale": 3.0}


def test_an_embedding_says_what_it_reads_rows_by():
    graph = lowered(HEAD.replace("%token_ids", "%positions"), "  return %x")
    assert graph.find("embedding")[0].attrs == {"ids": 1, "first": 0, "rows": 0, "scale": 1.0}


KEPT_HEADS = """
  %token_ids: int32[tokens] = input()
  %table: float32[20, 16] = weight() {expr = @"table"}
  %qkv: float32[tokens, 16] = embedding(%table, %token_ids) {scale = 1.0}
  %slots: int32[tokens] = input()
  %kv_cache.0: kv[] = input()
  %q: float32[tokens, 8], %c: kv[] = rotary_kv_write(%qkv, none, %slots, %kv_cache.0) ABOUT
""".replace("ABOUT", "{layer = 0, heads = 2, kv_heads = 1, head_dim = 4, rotary_dim = 0}")


def test_heads_that_do_not_turn_are_written_without_a_table():
    (write,) = lowered(KEPT_HEADS, "  return %q").find("rotary_kv_write")
    assert write.inputs[1] is None
    assert write.attrs == {"kv_layer": 0, "heads": 2, "rotary_dim": 0}


def test_q_stays_wide_until_the_scores_read_it():
    """A product with q reads float32, and what gives the scores their q rounds it."""
    gained = (
        KEPT_HEADS
        + """
  %seq_starts: int32[seqs + 1] = input()
  %context_lens: int32[seqs] = input()
  %block_tables: int32[seqs, max_blocks] = input()
  %g: float32[8] = weight() {expr = @"g"}
  %h: float32[8] = weight() {expr = @"h"}
  %q1: float32[tokens, 8] = mul(%q, %g)
  %q2: float32[tokens, 8] = mul(%q1, %h)
  %y: float32[tokens, 8] = paged_attention(%q2, %c, %seq_starts, %context_lens, %block_tables) ABOUT
""".replace("ABOUT", "{layer = 0, heads = 2, kv_heads = 1, head_dim = 4, scale = 1.0, window = 0, softcap = 0.0}")
    )
    graph = lowered(gained, "  return %y", dtype="bfloat16")
    (write,) = graph.find("rotary_kv_write")
    assert write.outputs[0].dtype == "float32"
    assert [node.attrs["program"] for node in graph.find("elementwise")] == ["x0 w mul", "x0 w mul"]
    assert [node.output.dtype for node in graph.find("elementwise")] == ["float32", "bfloat16"]


def test_heads_wider_than_kernels_take_are_refused():
    graph = cached(KEPT_HEADS, "  return %q")
    graph.find("rotary_kv_write")[0].attrs["head_dim"] = 4097
    with pytest.raises(UnsupportedModelError, match="heads of at most 4096 dimensions, those of layer 0 have 4097"):
        lower_to_cpu(graph)


def test_types_in_bfloat16():
    """Matmul inputs and matrices narrow, the stream and the vectors wide."""
    graph = lowered(dtype="bfloat16")
    types = {n.op: n.output.dtype for n in graph.nodes if len(n.outputs) == 1}
    assert types["embedding"] == "float32"
    assert types["rms_norm"] == "bfloat16"
    gate_up, down = graph.find("matmul")
    assert (gate_up.output.dtype, down.output.dtype) == ("bfloat16", "float32")
    layouts = {str(n.attrs["layout"]): n.output.dtype for n in graph.find("weight")}
    assert layouts == {"panels": "bfloat16", "panels_gated": "bfloat16", "raw": "float32"}


def test_a_matrix_that_stays_float32_reads_rows_in_float32():
    """In a float32 engine nothing changes; the reader of the narrow rows gets them rounded."""
    extra = '  %w2: float32[12, 8] = weight() {expr = @"w2"}\n  %r: float32[tokens, 12] = linear(%n, %w2)\n'

    def lowered_types(dtype, wide):
        graph = cached(HEAD + extra, "  return %gu, %r", dtype)
        graph.facts.wide = wide
        lower_to_cpu(graph)
        verify(graph, "lowered")
        assert graph.find("rms_norm")[0].output.dtype == ("float32" if wide else dtype)
        return [tuple(v.dtype for v in node.inputs[:2]) for node in graph.find("matmul")]

    narrow, whole = ("bfloat16", "bfloat16"), ("float32", "float32")
    assert lowered_types("bfloat16", []) == [narrow, narrow]
    assert lowered_types("bfloat16", ["w2"]) == [narrow, whole]
    assert lowered_types("bfloat16", ["w2", "wg"]) == [whole, whole]
    assert lowered_types("float32", ["w2"]) == [whole, whole]


def test_other_readers_of_a_matrix_that_stays_float32_are_refused():
    graph = cached(HEAD, "  return %gu", "bfloat16")
    graph.facts.wide = ["table"]
    with pytest.raises(LoweringError, match=r"%table .* stays float32 in this family, and only a linear reads"):
        lower_to_cpu(graph)


def test_a_tied_table_is_one_weight():
    body = HEAD + "  %logits: float32[tokens, 20] = linear(%n, %table) in head\n"
    graph = lowered(body, "  return %logits")
    assert graph.find("embedding")[0].inputs[0] is graph.find("matmul")[0].inputs[1]


def test_what_no_kernel_does_is_refused():
    graph = cached(HEAD + "  %y: float32[tokens, 12] = sin(%gu) in mlp.act\n", "  return %y", "float32")
    with pytest.raises(LoweringError, match=r"%y \(sin .* in mlp.act\) has no kernel on target cpu") as error:
        lower_to_cpu(graph)
    assert "^^^" in str(error.value)
    known = str(error.value).split("the ops with one are ")[1].split("\n")[0].split(", ")
    assert {"linear", "quantized_linear", "add_rms_norm", "swiglu", "add"} <= set(known)
    assert not {"sin", "matmul", "elementwise"} & set(known), "names of ops, not of instructions"


def test_a_slice_takes_neighbouring_columns():
    def sliced(columns, step):
        attrs = f"dim = 1, start = 3, end = 8, step = {step}"
        return HEAD + f"  %y: float32[tokens, {columns}] = slice(%gu) {{{attrs}}}\n", "  return %y", "bfloat16"

    (node,) = lowered(*sliced(5, 1)).find("take_columns")
    assert (node.output.dtype, node.output.shape) == ("float32", ("tokens", 5))
    assert node.operand(1).producer.attrs["value"].tolist() == [3, 4, 5, 6, 7]
    with pytest.raises(LoweringError, match="takes other than neighbouring columns"):
        lower_to_cpu(cached(*sliced(3, 2)))


BOTH = BODY + "  %z: float32[tokens, 8] = add(%n, %x) in odd\n"
"""The norm is a matmul's input and a summand."""
UNNORMED = (
    HEAD.replace("linear(%n, %wg, %bg)", "linear(%x, %wg, %bg)") + "  %l: float32[tokens, 12] = linear(%x, %wg)\n"
)
"""The embedding feeds two matmuls; its kernel writes float32."""


@pytest.mark.parametrize(
    ("body", "tail", "source"), [(BOTH, "  return %y, %z", "rms_norm"), (UNNORMED, "  return %gu, %l", "embedding")]
)
def test_a_matmul_operand_is_rounded_where_its_kernel_writes_float32(body, tail, source):
    """Once, however many matmuls read it; in float32 not at all."""
    assert lowered(body, tail).find("elementwise") == []
    graph = lowered(body, tail, dtype="bfloat16")
    (rounding,) = graph.find("elementwise")
    assert (rounding.attrs, rounding.output.dtype) == ({"program": "x0"}, "bfloat16")
    assert (rounding.inputs[0].node.op, rounding.inputs[0].dtype) == (source, "float32")
    assert all(n.inputs[0].dtype == "bfloat16" for n in graph.find("matmul"))


@pytest.mark.parametrize("variant", ["llama", "llama_biases", "qwen2"])
def test_numbers_of_a_real_model(rewritten, variant):
    model = rewritten(variant)
    weights = checkpoint_weights(model.checkpoint)
    sequences, steps = [[5, 4, 3, 2, 9, 8], [1, 2, 3]], [[2, 3], [4, 0]]
    before = interpret_ragged(model.report.cached_graph, sequences, weights, steps=steps)
    after = interpret_ragged(model.report.graph, sequences, weights, steps=steps)
    for x, y in zip(before, after, strict=True):
        assert float((x - y).abs().max()) <= chain_tolerance("float32", 48, 16, float(x.abs().max()))


def test_pinned_counts(model):
    """Embedding, table, 2 x (norm, qkv, write, attention, o, norm, gate-up, down), 2 gathers, norm, head."""
    assert model.count("lower_to_cpu") == 22


SPREAD = """
  %wh: float32[2, 8] = weight() {expr = @"wh"} in gate
  %h: float32[tokens, 2] = linear(%n, %wh) in gate
  %c: float32[2, 4, 1] = constant() {value = dense<float32 [2, 4, 1] (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)>} in gate
  %p: float32[tokens, 8] = head_products(%h, %c) in gate
  %y: float32[tokens, 8] = mul(%n, %p) in gate
"""


def test_numbers_that_are_spread_over_heads_stay_float32():
    graph = lowered(HEAD + SPREAD, dtype="bfloat16")
    (spread,) = graph.find("head_products")
    assert [value.dtype for value in (*spread.inputs, *spread.outputs)] == ["float32"] * 3
    stored = HEAD + SPREAD.replace(
        SPREAD[SPREAD.index("constant()") : SPREAD.index(" in gate\n  %p")], 'weight() {expr = @"c"}'
    )
    (product,) = lowered(stored, dtype="bfloat16").find("head_products")
    assert [value.dtype for value in (*product.inputs, *product.outputs)] == ["bfloat16", "bfloat16", "float32"]


@pytest.mark.parametrize(("count", "instructions"), [(2, 1), (4, 1), (5, 2), (8, 3)])
def test_rows_side_by_side_are_joined_a_few_at_a_time(count, instructions):
    parts = ", ".join(["%x", "%d"] * (count // 2) + ["%x"] * (count % 2))
    before = cached(
        BODY + f"  %c: float32[tokens, {8 * count}] = concat({parts}) {{dim = 1}} in layer\n", "  return %c"
    )
    graph = before.clone()
    lower_to_cpu(graph)
    verify(graph, "lowered")
    made = graph.find("concat")
    assert len(made) == instructions
    assert made[-1].output.shape == ("tokens", 8 * count)
    weights = checkpoint_weights(source_of(before))
    ids = torch.tensor([3, 1, 4], dtype=torch.int32)
    for a, b in zip(
        interpret(before, {"token_ids": ids}, weights), interpret(graph, {"token_ids": ids}, weights), strict=True
    ):
        assert float((a - b).abs().max()) <= chain_tolerance("float32", 16, 8, float(a.abs().max()))


def test_joined_rows_of_integers_are_refused():
    route = """
  %i: int32[tokens, 2], %r: float32[tokens, 2] = route(%x) {k = 2, normalise = true} in layer
  %c: int32[tokens, 4] = concat(%i, %i) {dim = 1} in layer
"""
    with pytest.raises(LoweringError, match="joins what is not rows of float32"):
        lower_to_cpu(cached(BODY + route, "  return %c"))


NUMBERED = """
  %positions: int32[tokens] = input()
  %c: float32[3, 8] = constant() {value = dense<float32 [3, 8] (BITS)>} in table
  %p: float32[tokens, 8] = embedding(%c, %positions) {scale = 1.0} in table
  %y: float32[tokens, 8] = mul(%n, %p) in table
""".replace("BITS", ", ".join(["1.001"] * 24))


def test_a_table_of_constants_stays_float32():
    tables = [node.operand(0) for node in lowered(HEAD + NUMBERED, dtype="bfloat16").find("embedding")]
    assert {value.producer.op: value.dtype for value in tables} == {"weight": "bfloat16", "constant": "float32"}
