from dataclasses import replace

import pytest

from support.pass_graphs import graph_of
from tensorwright.errors import PassError
from tensorwright.ir.graph import SOURCES
from tensorwright.ir.ops import instructions
from tensorwright.passes.plan_memory import ALIGNMENT, plan_memory

BYTES = {"float32": 4, "bfloat16": 2}


def may_be_written_over(node, result):
    """The operands whose memory this result may take, by the records (tests/plugins/test_in_place.py)."""
    record = instructions()[node.op]
    named = dict(zip((operand.name for operand in record.operands), node.inputs, strict=True))
    rules = [r for r in record.in_place if r.result == record.results[result].name and named.get(r.without) is None]
    return {named[name] for rule in rules for name in rule.over} - {None}


def check_plan(graph):
    """Plays the plan on arenas of owners: an operand must still be there when it is read. Knows nothing of liveness."""
    buffers = graph.facts.buffers
    arenas = {"tokens": {}, "rows": {}}
    sizes = {"tokens": graph.facts.token_arena_bytes, "rows": graph.facts.row_arena_bytes}
    home = {}

    def cells(index):
        kind, stride, offset = buffers[index].kind, buffers[index].stride, buffers[index].offset
        assert stride % ALIGNMENT == offset % ALIGNMENT == 0
        assert offset + stride <= sizes[kind]
        return [(kind, cell) for cell in range(offset // ALIGNMENT, (offset + stride) // ALIGNMENT)]

    def require_present(value):
        if value in home:
            for kind, cell in cells(home[value]):
                assert arenas[kind][cell] is value, f"%{value.name} was overwritten by %{arenas[kind][cell].name}"

    for node in graph.nodes:
        if node.op in SOURCES:
            continue
        for value in filter(None, node.inputs):
            require_present(value)
        read = {cell: v for v in filter(None, node.inputs) if v in home for cell in cells(home[v])}
        written = set()
        for i, (value, index) in enumerate(zip(node.outputs, node.attrs["buffers"], strict=True)):
            if value.dtype == "kv":
                assert index == -1
                continue
            place = buffers[index]
            kind, used = place.kind, place.cols * BYTES[place.dtype]
            assert (kind, place.dtype, place.cols) == (value.shape[0], value.dtype, value.shape[1])
            assert used <= place.stride < used + ALIGNMENT
            allowed = may_be_written_over(node, i)
            for cell in cells(index):
                if cell in read:
                    assert read[cell] in allowed
                    assert home[read[cell]] == index, "in place only in the very same buffer"
                assert cell not in written
                written.add(cell)
                arenas[kind][cell[1]] = value
            home[value] = index
    for value in graph.outputs:
        require_present(value)
    assert graph.facts.logits_buffer == home[graph.outputs[0]]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("variant", ["llama", "qwen2", "llama_mqa", "llama_wide_heads"])
def test_nothing_alive_is_overwritten(rewritten, variant, dtype):
    check_plan(rewritten(variant, dtype).report.graph)


def test_the_checker_sees_a_broken_plan(rewritten):
    graph = rewritten("llama").report.graph.clone()
    table = graph.find("rotary_table")[0].attrs["buffers"][0]
    buffers = graph.facts.buffers
    graph.facts.buffers = [replace(buffer, offset=0) if i == table else buffer for i, buffer in enumerate(buffers)]
    with pytest.raises(AssertionError, match="was overwritten"):
        check_plan(graph)


STREAM = """
  %token_ids: int32[tokens] = input()
  %table: float32[20, 8] = weight() {expr = @"table"}
  %wn: float32[8] = weight() {expr = @"wn"}
  %w: float32[8, 8] = weight() {expr = @"w"}
  %x: float32[tokens, 8] = embedding(%table, %token_ids) {ids = 0, first = 0, rows = 0, scale = 1.0}
  %a: float32[tokens, 8] = matmul(%x, %w, none, none) {epilogue = 0, n = 8}
  %n: float32[tokens, 8], %s: float32[tokens, 8] = rms_norm(%a, %wn, %x) {eps = 1e-05, weight_offset = 0.0}
  %y: float32[tokens, 8] = matmul(%n, %w, none, %s) {epilogue = 0, n = 8}
"""


def test_sums_go_over_what_nobody_reads_again():
    graph = graph_of(STREAM + "  return %y", "lowered")
    assert plan_memory(graph) == 3
    check_plan(graph)
    places = {v.name: i for n in graph.nodes for v, i in zip(n.outputs, n.attrs.get("buffers", []), strict=False)}
    assert places["s"] == places["x"] == places["y"]


LAYER_NORM = """
  %n: float32[tokens, 8], %s: float32[tokens, 8] = layer_norm(%a, %wn, none, %x) {start = 0, heads = 1, width = 8, REST}
  %m: float32[tokens, 8] = layer_norm(%s, %wn, none, none) {start = 2, heads = 1, width = 4, REST}
  %y: float32[tokens, 8] = matmul(%n, %w, none, %m) {epilogue = 0, n = 8}
""".replace("REST", "eps = 1e-05, weight_offset = 0.0")


def test_a_quantized_product_goes_over_its_residual():
    body = STREAM.replace("matmul(%n, %w, none, %s) {", 'quantized_matmul(%n, %w, none, %s) {format = "int8:g32", ')
    graph = graph_of(body + "  return %y", "lowered")
    assert plan_memory(graph) == 3
    check_plan(graph)


def test_a_layer_norm_goes_over_its_residual_or_over_its_operand():
    body = STREAM[: STREAM.index("  %n:")] + LAYER_NORM.lstrip("\n")
    graph = graph_of(body + "  return %y", "lowered")
    assert plan_memory(graph) == 3
    check_plan(graph)
    places = {v.name: i for n in graph.nodes for v, i in zip(n.outputs, n.attrs.get("buffers", []), strict=False)}
    assert places["s"] == places["x"] == places["m"] == places["y"]


def test_a_sum_whose_operands_are_read_again_gets_its_own_place():
    extra = "  %late: float32[tokens, 8] = add(%x, %a)\n"
    graph = graph_of(STREAM + extra + "  return %y, %late", "lowered")
    plan_memory(graph)
    check_plan(graph)
    places = {v.name: i for n in graph.nodes for v, i in zip(n.outputs, n.attrs.get("buffers", []), strict=False)}
    assert places["s"] not in (places["x"], places["a"])


def test_an_output_is_never_reused():
    graph = graph_of(STREAM + "  return %y, %x, %s, %n", "lowered")
    plan_memory(graph)
    check_plan(graph)


def test_the_arena_is_no_larger_than_what_lives_together(rewritten):
    """Widest moment of a layer: stream, table, and a matmul's two sides; far below the sum of all."""
    facts = rewritten("llama").report.graph.facts
    total = sum(b.stride for b in facts.buffers if b.kind == "tokens")
    assert facts.token_arena_bytes <= total / 2


def test_a_result_without_rows_is_refused():
    graph = graph_of(
        STREAM.replace("[tokens, 8]", "[6, 8]").replace("int32[tokens]", "int32[6]") + "  return %y", "lowered"
    )
    with pytest.raises(PassError, match=r"must be \[tokens or rows, columns\]"):
        plan_memory(graph)


def test_pinned_counts(model):
    """One buffer per instruction: sums are in place, caches live elsewhere."""
    assert model.count("plan_memory") == 22
