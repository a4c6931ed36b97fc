import pytest

from support.pass_graphs import assert_fires, assert_silent, graph_of, ops
from tensorwright.passes.fuse_qkv import fuse_qkv
from tensorwright.passes.join_qkv import PATTERN, check, join_qkv
from tensorwright.passes.rewriting.matcher import closest

SIZES = {"q": 8, "k": 4, "v": 4}


def projection(name, adapted=True):
    size = SIZES[name]
    base = f"""
  %w{name}: float32[{size}, 6] = weight() {{expr = @"w{name}"}}
  %a{name}: float32[2, 6] = weight() {{expr = @"a{name}"}}
  %b{name}: float32[{size}, 2] = weight() {{expr = @"b{name}"}}
  %{name}: float32[1, seq, {size}] = linear(%x, %w{name}) in attn.{name}
"""
    more = f"""
  %{name}low: float32[1, seq, 2] = linear(%x, %a{name}) in attn.{name}
  %{name}up: float32[1, seq, {size}] = linear(%{name}low, %b{name}) in attn.{name}
  %{name}sum: float32[1, seq, {size}] = add(%{name}, %{name}up) in attn.{name}
"""
    heads = f'  %{name}h: float32[1, seq, {size // 4}, 4] = view(%{name}SUM) {{shape = (1, "seq", {size // 4}, 4)}}\n'
    return base + more * adapted + heads.replace("SUM", "sum" * adapted)


HEAD = """
  %x: float32[1, seq, 6] = input()
  %table: float32[1, seq, 4] = input()
"""
ROTATED = """
  %qr: float32[1, seq, 2, 4] = rotary(%qh, %table) {rotary_dim = 4}
  %kr: float32[1, seq, 1, 4] = rotary(%kh, %table) {rotary_dim = 4}
  %y: float32[1, seq, 2, 4] = attention(%qr, %kr, %vh) ATTRS
"""
PLAIN = """
  %y: float32[1, seq, 2, 4] = attention(%qh, %kh, %vh) ATTRS
"""
GAINED = """
  %gq: float32[4] = weight() {expr = @"gq"}
  %gk: float32[4] = weight() {expr = @"gk"}
  %once: float32[1, seq, 2, 4] = mul(%qh, %gq)
  %twice: float32[1, seq, 2, 4] = mul(%once, %gk)
  %y: float32[1, seq, 2, 4] = attention(%twice, %kh, %vh) ATTRS
"""
ATTRS = '{scale = 0.5, mask = "causal", window = 0, softcap = 0.0}'


def body(rest=ROTATED, adapted="qkv"):
    return HEAD + "".join(projection(n, n in adapted) for n in SIZES) + rest.replace("ATTRS", ATTRS)


def fused(text, results="%y"):
    graph = graph_of(text + f"  return {results}", "fused")
    graph.drop_dead()
    return graph


@pytest.mark.parametrize("adapted", ["qkv", "q", "v"])
@pytest.mark.parametrize("rest", [ROTATED, PLAIN, GAINED], ids=["rotary", "no positions", "gains"])
def test_fires(rest, adapted):
    after = assert_fires(join_qkv, fused(body(rest, adapted)), 1)
    (joined,) = after.find("concat")
    assert joined.output.shape == (1, "seq", 16)
    assert [(n.attrs["start"], n.attrs["end"]) for n in after.find("slice")] == [(0, 8), (8, 12), (12, 16)]


def test_does_not_fire_on_one_linear():
    graph = fused(body(adapted=""))
    assert fuse_qkv(graph) == 1
    assert_silent(join_qkv, graph)
    assert "they are slices of one row" in closest(graph, PATTERN, check)


@pytest.mark.parametrize("start", [0, 4], ids=["columns left over", "q and k overlap"])
def test_fires_on_other_parts_of_one_row(start):
    end, k = start + 8, 8
    row = f"""
  %x: float32[1, seq, 6] = input()
  %table: float32[1, seq, 4] = input()
  %w: float32[20, 6] = weight() {{expr = @"w"}}
  %row: float32[1, seq, 20] = linear(%x, %w)
  %q: float32[1, seq, 8] = slice(%row) {{dim = 2, start = {start}, end = {end}, step = 1}}
  %k: float32[1, seq, 4] = slice(%row) {{dim = 2, start = {k}, end = {k + 4}, step = 1}}
  %v: float32[1, seq, 4] = slice(%row) {{dim = 2, start = {k + 4}, end = {k + 8}, step = 1}}
  %qh: float32[1, seq, 2, 4] = view(%q) {{shape = (1, "seq", 2, 4)}}
  %kh: float32[1, seq, 1, 4] = view(%k) {{shape = (1, "seq", 1, 4)}}
  %vh: float32[1, seq, 1, 4] = view(%v) {{shape = (1, "seq", 1, 4)}}
"""
    after = assert_fires(join_qkv, fused(row + ROTATED.replace("ATTRS", ATTRS)), 1)
    assert "concat" in ops(after)


def test_normalised_parts_of_one_row_stay():
    """The write of the cache has norms of columns before it."""
    row = """
  %x: float32[1, seq, 16] = input()
  %w: float32[8] = weight() {expr = @"w"}
  %qs: float32[1, seq, 8] = slice(%x) {dim = 2, start = 0, end = 8, step = 1}
  %q: float32[1, seq, 8] = rms_norm(%qs, %w) {eps = 1e-05, weight_offset = 0.0}
  %k: float32[1, seq, 4] = slice(%x) {dim = 2, start = 8, end = 12, step = 1}
  %v: float32[1, seq, 4] = slice(%x) {dim = 2, start = 12, end = 16, step = 1}
  %qh: float32[1, seq, 2, 4] = view(%q) {shape = (1, "seq", 2, 4)}
  %kh: float32[1, seq, 1, 4] = view(%k) {shape = (1, "seq", 1, 4)}
  %vh: float32[1, seq, 1, 4] = view(%v) {shape = (1, "seq", 1, 4)}
"""
    assert_silent(join_qkv, fused(row + PLAIN.replace("ATTRS", ATTRS)))


def test_does_not_fire_on_rotated_heads_used_by_others():
    graph = fused(body(), "%y, %kr")
    assert_silent(join_qkv, graph)
    assert "also an output" in closest(graph, PATTERN, check)


def test_pinned_counts(model, rewritten):
    assert model.count("join_qkv") == 0
    assert rewritten("zamba2").count("join_qkv") == 0
    assert rewritten("zamba2_adapters").count("join_qkv") == 4
