"""Row purity at stage "cached": one row never sees another. What couples requests is refused, with the node shown."""

from __future__ import annotations

import pytest

from tensorwright.errors import GraphError
from tensorwright.ir.parse import parse_graph
from tensorwright.ir.verify import verify

HEAD = """\
graph "c" stage cached {
  %token_ids: int32[tokens] = input()
  %positions: int32[tokens] = input()
  %seq_starts: int32[seqs + 1] = input()
  %context_lens: int32[seqs] = input()
  %block_tables: int32[seqs, max_blocks] = input()
  %slots: int32[tokens] = input()
  %logit_rows: int32[rows] = input()
  %kv_cache.0: kv[] = input()
  %table: float32[50, 8] = weight() {expr = @"table"}
  %w: float32[8] = weight() {expr = @"w"}
  %m: float32[12, 8] = weight() {expr = @"m"}
  %square: float32[8, 8] = weight() {expr = @"square"}
  %long: float32[4096, 8] = weight() {expr = @"long"}
  %two: float64[] = constant() {value = 2.0}
  %freq: float32[2] = constant() {value = dense<float32 [2] (1.0, 0.5)>}
  %x: float32[tokens, 8] = embedding(%table, %token_ids)
"""


ATTRS = {
    "NORM": "eps = 1e-06, weight_offset = 0.0",
    "HEADS": "layer = 0, heads = 2, kv_heads = 1, head_dim = 2",
    "MASK": "scale = 1.0, window = 0, softcap = 0.0",
}


def cached(body: str, output: str = "y"):
    for short, attrs in ATTRS.items():
        body = body.replace(short, attrs)
    lines = "".join(f"  {line.strip()}\n" for line in body.strip().splitlines())
    return parse_graph(f"{HEAD}{lines}  return %{output}\n}}\n")


PURE = {
    "norm": "%y: float32[tokens, 8] = rms_norm(%x, %w) {NORM}",
    "add_norm": "%y: float32[tokens, 8], %s: float32[tokens, 8] = add_rms_norm(%x, %x, %w) {NORM}",
    "layer_norm": "%y: float32[tokens, 8] = layer_norm(%x, %w, %w) {NORM}",
    "add_layer_norm": "%y: float32[tokens, 8], %s: float32[tokens, 8] = add_layer_norm(%x, %x, %w) {NORM}",
    "layer_norm_columns": "%y: float32[tokens, 8] = layer_norm_columns(%x, %w) {start = 0, heads = 1, width = 8, NORM}",
    "linear": "%y: float32[tokens, 12] = linear(%x, %m)",
    "split_columns": "%y: float32[tokens, 8], %s: float32[tokens, 2] = split_columns(%x, %freq)",
    "swiglu": '%y: float32[tokens, 4] = swiglu(%x) {activation = "silu"}',
    "weight_broadcast": "%y: float32[tokens, 8] = mul(%x, %w)",
    "scalar": "%y: float32[tokens, 8] = pow(%x, %two)",
    "table": "%y: float32[tokens, 4] = rotary_table(%positions, %freq) {scale = 1.0}",
    "reduce_columns": "%y: float32[tokens] = mean(%x) {dims = (1,), keepdim = false}",
    "softmax_columns": "%y: float32[tokens, 8] = softmax(%x) {dim = 1}",
    "slice_columns": "%y: float32[tokens, 4] = slice(%x) {dim = 1, start = 4, end = 8, step = 1}",
    "concat_columns": "%y: float32[tokens, 16] = concat(%x, %x) {dim = 1}",
    "heads": """%h: float32[tokens, 2, 4] = view(%x) {shape = ("tokens", 2, 4)}
                %y: float32[tokens, 4, 2] = transpose(%h) {dim0 = 1, dim1 = 2}""",
    "per_row_matmul": """%a: float32[tokens, 2, 4] = view(%x) {shape = ("tokens", 2, 4)}
                         %b: float32[tokens, 4, 2] = view(%x) {shape = ("tokens", 4, 2)}
                         %y: float32[tokens, 2, 2] = matmul(%a, %b)""",
    "shared_matmul": "%y: float32[tokens, 8] = matmul(%x, %square)",
    "gather_shared_table": "%y: float32[tokens, 8] = index(%long, %positions)",
    "pick_column": "%y: float32[tokens] = select(%x) {dim = 1, index = 3}",
    "full": '%y: float32[tokens, 2] = full() {shape = ("tokens", 2), value = 1.0, dtype = "float32"}',
    "expand_weight": """%u: float32[1, 8] = unsqueeze(%w) {dim = 0}
                        %y: float32[tokens, 8] = expand(%u) {shape = ("tokens", 8)}""",
    "shared_arange": """%a: int64[8] = arange() {start = 0, end = 8, step = 1, dtype = "int64"}
                        %y: float32[tokens, 8] = mul(%x, %a)""",
    "sequence_aware": """
        %q: float32[tokens, 4], %c: kv[] = rotary_kv_write(%x, %r, %slots, %kv_cache.0) {HEADS, rotary_dim = 2}
        %a: float32[tokens, 4] = paged_attention(%q, %c, %seq_starts, %context_lens, %block_tables) {HEADS, MASK}
        %y: float32[rows, 4] = gather_rows(%a, %logit_rows)""",
}  # fmt: skip


@pytest.mark.parametrize("name", PURE)
def test_row_wise_work_is_accepted(name):
    body = PURE[name]
    if "%r," in body:
        body = (
            "%f: float32[1] = constant() {value = dense<float32 [1] (1.0,)>}\n"
            "%r: float32[tokens, 2] = rotary_table(%positions, %f) {scale = 1.0}\n" + body.strip()
        )
    verify(cached(body))


COUPLED = {
    # Length-switched rope: the longest position of the batch chooses everybody's frequencies.
    "max_of_positions": (
        """%longest: int32[] = amax(%positions) {dims = (0,), keepdim = false}
           %y: float32[tokens, 8] = mul(%x, %longest)""",
        "%longest [] has no row per token, so it mixes them",
    ),
    "max_keepdim": (
        "%longest: int32[1] = amax(%positions) {dims = (0,), keepdim = true}",
        "has no row per token",
    ),
    # Learned positions counted from an attention mask.
    "cumsum": ("%y: int64[tokens] = cumsum(%positions) {dim = 0}", "it works along dimension 0, the tokens (dim = 0)"),
    "arange": (
        '%y: int64[tokens] = arange() {start = 0, end = "tokens", step = 1, dtype = "int64"}',
        "it counts tokens across sequences",
    ),
    "softmax": ("%y: float32[tokens, 8] = softmax(%x) {dim = 0}", "it works along dimension 0"),
    "mean": (
        "%s: float32[1, 8] = mean(%x) {dims = (0,), keepdim = true}\n%y: float32[tokens, 8] = sub(%x, %s)",
        "has no row per token",
    ),
    "slice": (
        '%y: float32[tokens - 1, 8] = slice(%x) {dim = 0, start = 1, end = "tokens", step = 1}',
        "has no row per token",
    ),
    "reverse_slice": (
        '%y: float32[tokens, 8] = slice(%x) {dim = 0, start = 0, end = "tokens", step = 1}',
        "it works along dimension 0",
    ),
    "select": ("%y: float32[8] = select(%x) {dim = 0, index = 0}", "has no row per token"),
    "concat": ("%y: float32[2*tokens, 8] = concat(%x, %x) {dim = 0}", "has no row per token"),
    "transpose": ("%y: float32[8, tokens] = transpose(%x) {dim0 = 0, dim1 = 1}", "has no row per token"),
    "permute": ("%y: float32[8, tokens] = permute(%x) {dims = (1, 0)}", "has no row per token"),
    "unsqueeze": ("%y: float32[1, tokens, 8] = unsqueeze(%x) {dim = 0}", "has no row per token"),
    "view": ('%y: float32[2*tokens, 4] = view(%x) {shape = ("2*tokens", 4)}', "has no row per token"),
    "self_matmul": (
        "%t: float32[8, tokens] = transpose(%x) {dim0 = 0, dim1 = 1}",
        "has no row per token",
    ),
    "outer_broadcast": (
        """%a: float32[tokens] = select(%x) {dim = 1, index = 0}
           %b: float32[tokens, 1] = unsqueeze(%a) {dim = 1}
           %y: float32[tokens, tokens] = sub(%a, %b)""",
        "%y [tokens, tokens] spreads the tokens over another dimension",
    ),
    "gather_tokens": (
        "%y: float32[tokens, 8] = index(%x, %positions)",
        "it picks among tokens",
    ),
    "size_of_the_batch": (
        """%n: int64[] = full() {shape = (), value = "tokens", dtype = "int64"}
           %y: float32[tokens, 8] = mul(%x, %n)""",
        "attribute value depends on the size of the batch",
    ),
    "norm_over_tokens": (
        """%a: float32[tokens] = select(%x) {dim = 1, index = 0}
           %b: float32[tokens] = rms_norm(%a, %a) {NORM}""",
        "it sums over the only dimension of %a, the tokens",
    ),
    "linear_over_tokens": (
        "%y: float32[tokens, tokens] = linear(%x, %x)",
        "spreads the tokens over another dimension",
    ),
    "metadata": (
        "%n: int32[seqs] = neg(%context_lens)",
        "operand %context_lens [seqs] varies with the batch in more than its rows",
    ),
    "block_tables": (
        "%y: float32[seqs, max_blocks, 8] = embedding(%table, %block_tables)",
        "varies with the batch in more than its rows",
    ),
    "view_without_tokens": ("%y: float32[tokens, 8] = concat(%x) {dim = 0}", "it works along dimension 0"),
    "rows_of_another_kind": (
        """%g: float32[rows, 8] = gather_rows(%x, %logit_rows)
           %y: float32[rows, 8] = embedding(%g, %logit_rows)""",
        "the table must be the same for all rows",
    ),
}


@pytest.mark.parametrize("name", COUPLED)
def test_what_couples_rows_is_refused(name):
    body, message = COUPLED[name]
    output = "y" if "%y:" in body else body.split(":")[0].strip().lstrip("%")
    output = "b" if "%b:" in body and "%y" not in body else output
    with pytest.raises(GraphError) as caught:
        verify(cached(body, output))
    assert message in str(caught.value)
    assert "is not row-pure" in str(caught.value)
    assert "^^" in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("%slots: int32[tokens]", "%slots: int64[tokens]", "%slots must be int32[tokens], not int64[tokens]"),
        ("%slots: int32[tokens]", "%slits: int32[tokens]", "%slits is no input of a batch"),
        ("%kv_cache.0: kv[]", "%kv_cache.0: float32[4]", "a cache must be kv[]"),
        ("%logit_rows", "%state.0: kv[] = input()\n  %logit_rows", "a cache must be state[], not kv[]"),
        ("%logit_rows", "%state_slots: int32[tokens] = input()\n  %logit_rows", "%state_slots must be int32[seqs]"),
        ("return %x", "return %w", "must have one row per logit row"),
    ],
)
def test_inputs_and_outputs_of_a_batch(old, new, message):
    text = HEAD + "  return %x\n}\n"
    verify(parse_graph(text))
    with pytest.raises(GraphError) as caught:
        verify(parse_graph(text.replace(old, new)))
    assert message in str(caught.value)
