import pytest
import torch
from tolerances import chain_tolerance

from support.pass_graphs import graph_of, ops, source_of
from tensorwright.builder.checkpoint_weights import checkpoint_weights
from tensorwright.errors import UnsupportedModelError
from tensorwright.ir.facts import KvLayer
from tensorwright.ir.interpret import interpret
from tensorwright.ir.ragged import interpret_ragged
from tensorwright.ir.verify import CACHED_INPUTS, verify
from tensorwright.passes.insert_kv_cache import insert_kv_cache

# One layer: 2 query heads on 1 KV head of 4 dimensions, half of them rotated.
BODY = """
  %input_ids: int64[1, seq] = input()
  %position_ids: int64[1, seq] = input()
  %table: float32[20, 8] = weight() {expr = @"table"} in embed
  %x: float32[1, seq, 8] = embedding(%table, %input_ids) in embed
  %freq: float32[1] = constant() {value = dense<float32 [1] (0.7)>}
  %angles: float32[1, seq, 2] = rotary_table(%position_ids, %freq) {scale = 1.0}
  %wqkv: float32[16, 8] = weight() {expr = @"wqkv"} in attn
  %qkv: float32[1, seq, 16] = linear(%x, %wqkv) in attn
  %qs: float32[1, seq, 8] = slice(%qkv) {dim = 2, start = 0, end = 8, step = 1} in attn
  %ks: float32[1, seq, 4] = slice(%qkv) {dim = 2, start = 8, end = 12, step = 1} in attn
  %vs: float32[1, seq, 4] = slice(%qkv) {dim = 2, start = 12, end = 16, step = 1} in attn
  %q: float32[1, seq, 2, 4] = view(%qs) {shape = (1, "seq", 2, 4)} in attn
  %k: float32[1, seq, 1, 4] = view(%ks) {shape = (1, "seq", 1, 4)} in attn
  %v: float32[1, seq, 1, 4] = view(%vs) {shape = (1, "seq", 1, 4)} in attn
  %qr: float32[1, seq, 2, 4] = rotary(%q, %angles) {rotary_dim = 2} in attn
  %kr: float32[1, seq, 1, 4] = rotary(%k, %angles) {rotary_dim = 2} in attn
  %a: float32[1, seq, 2, 4] = attention(%qr, %kr, %v) {scale = 0.5, mask = "window", window = 3, softcap = 0.0} in attn
  %flat: float32[1, seq, 8] = view(%a) {shape = (1, "seq", 8)} in attn
  %sum: float32[1, seq, 8] = add(%x, %flat) in layer
  %wn: float32[8] = weight() {expr = @"wn"} in norm
  %n: float32[1, seq, 8] = rms_norm(%sum, %wn) {eps = 1e-05, weight_offset = 0.0} in norm
  %wh: float32[20, 8] = weight() {expr = @"wh"} in head
  %logits: float32[1, seq, 20] = linear(%n, %wh) in head
"""


def fused(body=BODY, tail="  return %logits"):
    return graph_of(body + tail, "fused")


def test_fires():
    graph = fused()
    assert insert_kv_cache(graph) == 1
    verify(graph, "cached")
    assert [v.name for v in graph.inputs] == [*CACHED_INPUTS, "kv_cache.0"]
    assert ops(graph) == [
        "embedding", "rotary_table", "linear", "rotary_kv_write", "paged_attention", "add", "gather_rows", "rms_norm",
        "linear",
    ]  # fmt: skip
    assert graph.facts.kv_layers == [KvLayer(group=0, kv_heads=1, head_dim=4, window=3)]
    assert graph.outputs[0].shape == ("rows", 20)
    (write,) = graph.find("rotary_kv_write")
    assert write.attrs == {"layer": 0, "heads": 2, "kv_heads": 1, "head_dim": 4, "rotary_dim": 2}


LEARNED = """
  %wpe: float32[12, 8] = weight() {expr = @"wpe"} in positions
  %p: float32[1, seq, 8] = embedding(%wpe, %position_ids) in positions
  %x: float32[1, seq, 8] = add(%e, %p) in embed
"""


def learned_positions(positions=12):
    """The same layer with positions that are learned, not turned into q and k."""
    tokens = "  %x: float32[1, seq, 8] = embedding(%table, %input_ids) in embed\n"
    body = BODY.replace(tokens, tokens.replace("%x", "%e") + LEARNED[1:])
    kept = [line for line in body.splitlines(True) if "rotary" not in line and "%freq" not in line]
    graph = fused("".join(kept).replace("%qr", "%q").replace("%kr", "%k"))
    graph.facts.max_seq_len = positions
    return graph


def test_without_rotation_the_write_has_no_table():
    graph = learned_positions()
    assert insert_kv_cache(graph) == 1
    verify(graph, "cached")
    assert [n.inputs[1].name for n in graph.find("embedding")] == ["token_ids", "positions"]
    (write,) = graph.find("rotary_kv_write")
    assert write.inputs[1] is None
    assert write.attrs["rotary_dim"] == 0


def test_positions_past_the_table_are_refused():
    with pytest.raises(UnsupportedModelError, match=r"has 12 positions; max_seq_len must be at most that, not 13"):
        insert_kv_cache(learned_positions(13))


def with_table(rows):
    return BODY.replace("%table: float32[20, 8]", f"%table: float32[{rows}, 8]")


def test_rows_beyond_the_vocabulary_are_left_out():
    """They stand for pieces of images, and there are no logits of them."""
    plain, more = fused(), fused(with_table(23))
    source, ids = source_of(more), torch.tensor([3, 19, 0])
    insert_kv_cache(plain)
    assert insert_kv_cache(more) == 1
    verify(more, "cached")
    (gather,) = more.find("embedding")
    assert gather.operand(0).shape == (20, 8)
    assert str(gather.operand(0).producer.attrs["expr"]) == 'slice(0, 0, 20, "table")'
    assert len(more.find("weight")) == len(plain.find("weight"))
    (rows,) = interpret_ragged(more, [ids], checkpoint_weights(source))
    source.arrays["table"] = source.arrays["table"][:20]
    (wanted,) = interpret_ragged(plain, [ids], checkpoint_weights(source))
    assert torch.equal(rows, wanted)


def test_tokens_without_a_row_are_refused():
    with pytest.raises(UnsupportedModelError, match="has rows for 19 tokens, and there are logits of 20"):
        insert_kv_cache(fused(with_table(19)))


def test_rows_by_something_computed_are_refused():
    body = BODY.replace("embedding(%table, %input_ids)", "embedding(%table, %twice)")
    body = body.replace("  %x: f", "  %twice: int64[1, seq] = add(%input_ids, %input_ids)\n  %x: f", 1)
    with pytest.raises(UnsupportedModelError, match="must read rows by token or by position"):
        insert_kv_cache(fused(body))


def gained(gain='weight() {expr = @"gain"}'):
    """The same layer with q multiplied behind its rotation, as by the weights of two norms."""
    products = f"""
  %g: float32[4] = {gain} in attn
  %once: float32[1, seq, 2, 4] = mul(%qr, %g) in attn
  %twice: float32[1, seq, 2, 4] = mul(%once, %g) in attn
  %a: float32"""
    return fused(BODY.replace("  %a: float32", products[1:], 1).replace("attention(%qr", "attention(%twice"))


def test_gains_of_q_come_behind_the_write_once_for_every_head():
    graph = gained()
    assert insert_kv_cache(graph) == 1
    verify(graph, "cached")
    assert ops(graph)[3:7] == ["rotary_kv_write", "mul", "mul", "paged_attention"]
    assert [node.inputs[1].shape for node in graph.find("mul")] == [(8,), (8,)]


def test_a_constant_gain_is_repeated_too():
    graph = gained("constant() {value = dense<float32 [4] (1, 2, 3, 4)>}")
    assert insert_kv_cache(graph) == 1
    assert graph.find("mul")[0].inputs[1].constant.tolist() == [1, 2, 3, 4] * 2


def test_chunks_have_a_cache_of_their_own_kind():
    graph = fused(BODY.replace('mask = "window"', 'mask = "chunk"'))
    assert insert_kv_cache(graph) == 1
    verify(graph, "cached")
    assert graph.facts.kv_layers == [KvLayer(group=0, kv_heads=1, head_dim=4, window=3, chunked=True)]
    (read,) = graph.find("paged_attention")
    assert (read.attrs["window"], read.attrs["chunked"]) == (3, True)


def shared(window=3, keys="%kr", mask="window"):
    """A norm of v, and a second attention to the keys and values of the first, with queries of its own."""
    second = """
  %ones: float32[4] = constant() {value = dense<float32 [4] (1, 1, 1, 1)>} in attn
  %vn: float32[1, seq, 1, 4] = rms_norm(%v, %ones) {eps = 1e-05, weight_offset = 0.0} in attn
  %a: float32"""
    third = f"""
  %wq: float32[8, 8] = weight() {{expr = @"wq"}} in second
  %rows: float32[1, seq, 8] = linear(%flat, %wq) in second
  %heads: float32[1, seq, 2, 4] = view(%rows) {{shape = (1, "seq", 2, 4)}} in second
  %wqn: float32[4] = weight() {{expr = @"wqn"}} in second
  %normed: float32[1, seq, 2, 4] = rms_norm(%heads, %wqn) {{eps = 1e-05, weight_offset = 0.0}} in second
  %turned: float32[1, seq, 2, 4] = rotary(%normed, %angles) {{rotary_dim = 2}} in second
  %b: float32[1, seq, 2, 4] = attention(%turned, {keys}, %vn) {{
    scale = 0.5, mask = "{mask}", window = {window}, softcap = 0.0}} in second
  %last: float32[1, seq, 8] = view(%b) {{shape = (1, "seq", 8)}} in second
  %sum: float32"""
    body = BODY.replace("  %a: float32", second[1:], 1).replace("%kr, %v)", "%kr, %vn)")
    body = body.replace("  %sum: float32", third.replace("{\n    scale", "{scale")[1:], 1)
    return fused(body.replace("add(%x, %flat)", "add(%x, %last)"))


def test_a_layer_reads_the_keys_and_values_of_another():
    graph = shared()
    assert insert_kv_cache(graph) == 1
    verify(graph, "cached")
    assert [v.name for v in graph.inputs] == [*CACHED_INPUTS, "kv_cache.0"]
    first, second = graph.find("rotary_kv_write")
    assert second.attrs == {"layer": 0, "heads": 2, "kv_heads": 0, "head_dim": 4, "rotary_dim": 2}
    assert second.inputs[3] is first.outputs[1]
    norms = [(n.attrs["start"], n.attrs["heads"], n.output.shape[1]) for n in graph.find("rms_norm_columns")]
    assert norms == [(12, 1, 16), (0, 2, 8)]
    assert [n.attrs["kv_heads"] for n in graph.find("paged_attention")] == [1, 1]


def test_another_window_in_the_same_cache_is_refused():
    with pytest.raises(UnsupportedModelError, match="has a window of 2 in the cache of a layer with a window of 3"):
        insert_kv_cache(shared(window=2))
    with pytest.raises(UnsupportedModelError, match="has a chunk of 3 in the cache of a layer with a window of 3"):
        insert_kv_cache(shared(mask="chunk"))


def test_keys_without_their_values_are_refused():
    with pytest.raises(UnsupportedModelError, match="must read q and k"):
        insert_kv_cache(shared(keys="%k"))


def grown():
    """The same layer with q multiplied by a number of its position behind its rotation."""
    row = """
  %growth: float32[12, 1] = constant() {value = dense<float32 [12, 1] (1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6)>} in attn
  %number: float32[1, seq, 1] = embedding(%growth, %position_ids) in attn
  %ones: float32[1, 8, 1] = constant() {value = dense<float32 [1, 8, 1] (1, 1, 1, 1, 1, 1, 1, 1)>} in attn
  %row: float32[1, seq, 8] = head_products(%number, %ones) in attn
  %heads: float32[1, seq, 2, 4] = view(%row) {shape = (1, "seq", 2, 4)} in attn
  %large: float32[1, seq, 2, 4] = mul(%qr, %heads) in attn
  %a: float32"""
    graph = fused(BODY.replace("  %a: float32", row[1:], 1).replace("attention(%qr", "attention(%large"))
    graph.facts.max_seq_len = 12
    return graph


def test_a_growth_of_q_comes_behind_the_write():
    graph = grown()
    assert insert_kv_cache(graph) == 1
    verify(graph, "cached")
    (product,) = graph.find("mul")
    assert [value.node.op for value in product.inputs] == ["rotary_kv_write", "head_products"]
    assert product.output.shape == ("tokens", 8)


@pytest.mark.parametrize("make", [fused, learned_positions, gained, shared, grown])
@pytest.mark.parametrize("steps", [None, [[1, 0, 4], [0, 7, 1], [8, 0, 0]]], ids=["at once", "in steps"])
def test_every_sequence_gets_what_it_gets_alone(steps, make):
    before = make()
    graph = before.clone()
    insert_kv_cache(graph)
    weights = checkpoint_weights(source_of(before))
    sequences = [[3, 1, 4, 1, 5, 9, 2, 6, 5], [3, 5, 8, 9, 7, 9, 3], [2, 3, 8, 4, 6]]
    for ids, logits in zip(sequences, interpret_ragged(graph, sequences, weights, steps=steps), strict=True):
        inputs = {"input_ids": torch.tensor([ids]), "position_ids": torch.arange(len(ids))[None]}
        (alone,) = interpret(before, inputs, weights)
        bound = chain_tolerance("float32", 16, 4, float(alone.abs().max()))
        assert float((alone[0] - logits).abs().max()) <= bound


def test_only_wanted_rows_are_computed_after_the_last_layer():
    """Both operands of a norm with a residual are gathered; nothing after it has a row per token."""
    body = BODY.replace("  %sum: float32[1, seq, 8] = add(%x, %flat) in layer\n", "").replace(
        "%n: float32[1, seq, 8] = rms_norm(%sum, %wn)",
        "%n: float32[1, seq, 8], %sum: float32[1, seq, 8] = add_rms_norm(%flat, %x, %wn)",
    )
    graph = fused(body)
    insert_kv_cache(graph)
    verify(graph, "cached")
    assert len(graph.find("gather_rows")) == 2
    assert graph.find("add_rms_norm")[0].outputs[0].shape == ("rows", 8)


@pytest.mark.parametrize("shape", ["2, 4", "4"], ids=["own weights", "shared weights"])
def test_layer_norms_of_heads_become_norms_of_columns(shape):
    body = BODY.replace("rotary(%q,", "rotary(%qn,").replace("rotary(%k,", "rotary(%kn,")
    norms = f"""  %wq: float32[{shape}] = weight() {{expr = @"wq"}} in attn
  %wk: float32[4] = weight() {{expr = @"wk"}} in attn
  %qn: float32[1, seq, 2, 4] = layer_norm(%q, %wq, %wq) {{eps = 1e-05, weight_offset = 0.0}} in attn
  %kn: float32[1, seq, 1, 4] = layer_norm(%k, %wk) {{eps = 1e-05, weight_offset = 0.0}} in attn
"""
    before = fused(body.replace("  %qr:", norms + "  %qr:"))
    graph = before.clone()
    insert_kv_cache(graph)
    verify(graph, "cached")
    runs = [(n.attrs["start"], n.attrs["heads"], n.attrs["width"]) for n in graph.find("layer_norm_columns")]
    assert runs == [(0, 2, 4), (8, 1, 4)]
    ids = [3, 1, 4, 1, 5, 9]
    weights = checkpoint_weights(source_of(before))
    inputs = {"input_ids": torch.tensor([ids]), "position_ids": torch.arange(len(ids))[None]}
    (alone,) = interpret(before, inputs, weights)
    (rows,) = interpret_ragged(graph, [ids], weights)
    assert float((alone[0] - rows).abs().max()) <= chain_tolerance("float32", 16, 4, float(alone.abs().max()))


KEYS_TURN = """  %kr: float32[1, seq, 1, 4] = rotary(%k, %angles) {rotary_dim = 2} in attn
  %a: float32[1, seq, 2, 4] = attention("""


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (KEYS_TURN + "%qr, %kr", KEYS_TURN.splitlines()[1] + "%qr, %k", "only one of q and k is rotated"),
        ("add(%x, %flat)", "cumsum(%flat) {dim = 1}", "has no form that is per token"),
        ("attention(%qr, %kr, %v)", "attention(%qr, %kr, %kr)", "both rotated or neither, and plain v"),
        ("start = 0, end = 8", "start = 8, end = 16", "attribute start is not 0"),
        ("rms_norm(%sum, %wn) {eps = 1e-05, weight_offset = 0.0}", "mul(%sum, %wn)", "the search for the final norm"),
    ],
)  # fmt: skip
def test_what_has_no_ragged_form_is_refused(old, new, reason):
    assert old in BODY
    with pytest.raises(UnsupportedModelError, match=reason) as error:
        insert_kv_cache(fused(BODY.replace(old, new)))
    assert "^^^" in str(error.value)
    assert " in attn)" in str(error.value) or " in layer)" in str(error.value) or " in norm)" in str(error.value)


def test_mixing_positions_is_refused():
    twist = '  %t: float32[1, seq, 8] = view(%x) {shape = (1, "seq", 8)}\n'
    turned = (
        '  %t8: float32[1, 8, seq] = view(%x) {shape = (1, 8, "seq")}\n'
        '  %t: float32[1, seq, 8] = view(%t8) {shape = (1, "seq", 8)}\n'
    )
    body = BODY.replace("  %sum: float32[1, seq, 8] = add(%x,", "TWIST  %sum: float32[1, seq, 8] = add(%t,")
    assert insert_kv_cache(fused(body.replace("TWIST", twist))) == 1
    with pytest.raises(UnsupportedModelError, match="mixes positions"):
        insert_kv_cache(fused(body.replace("TWIST", turned)))


def test_rows_side_by_side_stay_so():
    """A joint along columns is the same for tokens; one along positions has no form that is per token."""
    joined = """
  %both: float32[1, seq, 16] = concat(%x, %flat) {dim = 2} in layer
  %ww: float32[8, 16] = weight() {expr = @"ww"} in layer
  %sum: float32[1, seq, 8] = linear(%both, %ww) in layer
"""
    body = BODY.replace("  %sum: float32[1, seq, 8] = add(%x, %flat) in layer\n", joined[1:])
    graph = fused(body)
    assert insert_kv_cache(graph) == 1
    verify(graph, "cached")
    (concat,) = graph.find("concat")
    assert concat.output.shape == ("tokens", 16)
    along = body.replace("%both: float32[1, seq, 16]", "%twice: float32[1, 2 * seq, 8]").replace(
        "{dim = 2} in layer", "{dim = 1} in layer"
    )
    half = '  %both: float32[1, seq, 16] = view(%twice) {shape = (1, "seq", 16)} in layer\n'
    with pytest.raises(UnsupportedModelError, match="joins positions"):
        insert_kv_cache(fused(along.replace("  %ww:", half + "  %ww:", 1)))


def test_rows_of_the_final_norm_must_not_be_used_elsewhere():
    more = "  %more: float32[1, seq, 8] = add(%n, %x)\n"
    with pytest.raises(UnsupportedModelError, match="one output"):
        insert_kv_cache(fused(BODY + more, "  return %logits, %more, %more"))


def test_features_are_of_every_token_even_where_they_are_made_of_the_final_norm():
    more = "  %more: float32[1, seq, 8] = add(%n, %x)\n"
    graph = fused(BODY + more, "  return %logits, %more")
    insert_kv_cache(graph)
    verify(graph, "cached")
    assert [value.shape for value in graph.outputs] == [("rows", 20), ("tokens", 8)]
    assert [node.op for node in graph.nodes if node.op in ("rms_norm", "gather_rows")] == ["rms_norm", "gather_rows"]
    graph = fused(BODY, "  return %logits, %sum")
    insert_kv_cache(graph)
    verify(graph, "cached")
    assert [value.shape for value in graph.outputs] == [("rows", 20), ("tokens", 8)]
    assert [node.op for node in graph.nodes if node.op in ("rms_norm", "gather_rows")] == ["gather_rows", "rms_norm"]


def test_heads_read_features_and_give_their_own_for_the_rows_alone():
    body = BODY.replace("add(%x, %flat)", "add(%given_features, %flat)").replace(
        "  %table:", "  %given_features: float32[1, seq, 8] = input()\n  %table:"
    )
    graph = fused(body, "  return %logits, %sum")
    graph.facts.vocab_size = 20
    insert_kv_cache(graph)
    verify(graph, "cached")
    assert [v.name for v in graph.inputs if v.shape == ("tokens", 8)] == ["features"]
    assert [value.shape[0] for value in graph.outputs] == ["rows", "rows"]


def test_pinned_counts(model, rewritten):
    assert model.count("insert_kv_cache") == 2
    assert len(rewritten("llama_mqa").report.graph.facts.kv_layers) == 2
