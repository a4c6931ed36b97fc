"""The division of a budget of bits: no budget is exceeded, no step is worse than another, and the spec says what was
chosen."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from support.pass_graphs import graph_of
from tensorwright.builder.calibrate.choose_formats import (
    Budget,
    Matrix,
    chosen_spec,
    divide,
    hull,
    open_budget,
    open_matrices,
    patterns_of,
)
from tensorwright.engine_format.format_rules import matches
from tensorwright.engine_format.targets import TARGETS
from tensorwright.engine_format.weight_formats import KEPT, WeightFormat, every_format, parse_format, parse_spec
from tensorwright.errors import InvalidOptionError
from tensorwright.ir.weights import Ref
from tensorwright.passes.quantize_weights import quantizable, weights_of

CPU = TARGETS["cpu"].weight_formats
FORMATS = tuple(map(parse_format, ("int4:g128", "int4:g32", "int8:g128", "w8a8")))
GRAPH = """
  %token_ids: int32[tokens] = input()
  %logit_rows: int32[rows] = input()
  %e: float32[64, 128] = weight() {expr = @"embed.weight"} in embed
  %x: float32[tokens, 128] = embedding(%e, %token_ids) {scale = 1.0} in embed
  %qk: float32[256, 128] = weight() {expr = @concat(0, "layers.0.q.weight", "layers.0.k.weight")} in layers.0
  %a: float32[tokens, 256] = linear(%x, %qk) in layers.0
  %o: float32[128, 256] = weight() {expr = @"layers.0.o.weight"} in layers.0
  %b: float32[tokens, 128] = linear(%a, %o) in layers.0
  %r: float32[rows, 128] = gather_rows(%b, %logit_rows) in norm
  %y: float32[rows, 64] = linear(%r, %e) in lm_head
  return %y"""


def made(number: int, rows: int = 64, columns: int = 256) -> Matrix:
    name = f"layers.{number}.weight"
    return Matrix((name,), (Ref(name),), ((1, rows, columns),), FORMATS, None, True, frozenset(("layers",)))


def test_candidates_come_from_the_table_of_formats() -> None:
    found = every_format(CPU)
    assert {fmt.family for fmt in found} == set(CPU)
    assert all(str(parse_format(str(fmt))) == str(fmt) for fmt in found)
    assert len(set(found)) == len(found)
    float16 = set(every_format(("int4", "w8a8"), (":fp16",)))
    assert {str(fmt) for fmt in float16} == {"int4:g32:fp16", "int4:g64:fp16", "int4:g128:fp16", "w8a8"}


def test_only_points_of_the_lower_hull_count() -> None:
    draw = np.random.default_rng(0)
    for _ in range(50):
        points = [(int(size), float(price), None) for size, price in draw.integers(1, 30, (8, 2))]
        found = hull(points)
        sizes, prices = [p[0] for p in found], [p[1] for p in found]
        assert sizes == sorted(set(sizes))
        assert prices == sorted(set(prices), reverse=True)
        slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.pairwise(found)]
        assert slopes == sorted(slopes)
        for size, price, _ in points:  # None lies below the line through the corners.
            below = np.interp(size, sizes, prices) if sizes[0] <= size <= sizes[-1] else prices[size > sizes[0] and -1]
            assert size >= sizes[0]
            assert price >= below - 1e-9


def test_a_budget_is_spent_where_it_gains_most() -> None:
    """Against all divisions there are: the sum of costs is at most one step of one matrix above the least."""
    draw = np.random.default_rng(1)
    matrices = tuple(made(i) for i in range(4))
    dtype = "bfloat16"
    for _ in range(10):
        weights = {matrix: float(10 ** draw.uniform(-2, 2)) for matrix in matrices}

        def cost(matrix: Matrix, fmt: WeightFormat, weights: dict[Matrix, float] = weights) -> float:
            return weights[matrix] * (0.01 if fmt.bits == 8 else 1.0) * (2.0 if fmt.group == 128 else 1.0)

        sizes = [matrix.bytes(fmt, dtype) for matrix in matrices for fmt in FORMATS]
        total = int(draw.uniform(4 * min(sizes), 4 * max(sizes)))
        budget = Budget(matrices, total, dtype)
        chosen = divide(budget, cost)
        assert divide(budget, cost) == chosen
        spent = sum(matrix.bytes(fmt, dtype) for matrix, fmt in chosen.items())
        assert spent <= total
        options = [[(m.bytes(f, dtype), cost(m, f)) for f in FORMATS] + [(m.bytes(None, dtype), 0.0)] for m in matrices]
        best = min(
            sum(price for _, price in parts)
            for parts in itertools.product(*options)
            if sum(size for size, _ in parts) <= total
        )
        ours = sum(0.0 if fmt is None else cost(matrix, fmt) for matrix, fmt in chosen.items())
        steps = [
            max(a[1] - b[1] for a, b in itertools.pairwise(hull([(*point, None) for point in each])))
            for each in options
        ]
        assert best <= ours <= best + max(steps)


def test_more_bits_never_cost_more() -> None:
    matrices = tuple(made(i) for i in range(6))
    budgets = [Budget(matrices, total, "bfloat16") for total in range(60_000, 200_000, 7_000)]

    def cost(matrix: Matrix, fmt: WeightFormat) -> float:
        return (1 + matrices.index(matrix)) * 2.0**-fmt.bits * (1 + fmt.group / 128)

    sums = [sum(cost(m, fmt) if fmt else 0.0 for m, fmt in divide(budget, cost).items()) for budget in budgets]
    assert sums == sorted(sums, reverse=True)
    assert sums[0] > sums[-1]


def test_weights_that_share_a_matrix_are_one() -> None:
    graph = graph_of(GRAPH, "cached")
    tied, joined, single = open_matrices(graph, parse_spec("mixed:5"), parse_spec("mixed:5").choices[0], FORMATS)
    assert (tied.names, tied.parts, tied.weights) == (("embed.weight",), {"embedding", "lm_head"}, 64 * 128)
    assert (joined.names, joined.parts) == (("layers.0.q.weight", "layers.0.k.weight"), {"layers"})
    assert (single.shapes, single.embedding) == (((1, 128, 256),), None)
    assert single.bytes(parse_format("w8a8"), "float32") == 128 * 256 + 128 * 4
    assert single.bytes(None, "float32") == 128 * 256 * 4


def test_what_has_a_format_takes_its_bytes_first() -> None:
    graph = graph_of(GRAPH, "cached")
    graph.facts.dtype = "bfloat16"
    whole = open_budget(graph, parse_spec("mixed:12"), FORMATS)
    rest = open_budget(graph, parse_spec("mixed:12,lm_head=int8,embedding=int8,*.o.weight=none"), FORMATS)
    assert [matrix.names for matrix in rest.matrices] == [("layers.0.q.weight", "layers.0.k.weight")]
    table = 64 // 16 * parse_format("int8").panel_bytes(128)
    assert whole.bytes - rest.bytes == table + 2 * 128 * 256
    with pytest.raises(InvalidOptionError, match=r"mixed:4 is too little .* take 4\.\d+ bits per weight; give more"):
        open_budget(graph, parse_spec("mixed:4"), FORMATS)


@pytest.mark.parametrize("asked", ["mixed:6", "mixed:6,lm_head=int8,embedding=none", "kept,*.o.weight=w8a8"])
def test_the_spec_says_what_was_chosen(asked: str) -> None:
    graph = graph_of(GRAPH, "cached")
    spec = parse_spec(asked)
    matrices = open_matrices(graph, spec, spec.choices[0], FORMATS)
    names = [name for node in quantizable(graph) for name in weights_of(node)]
    for formats in itertools.product((*FORMATS[:2], None), repeat=len(matrices)):
        chosen = dict(zip(matrices, formats, strict=True))
        made = chosen_spec(spec, chosen, names)
        assert not made.choices
        parts = {"embedding": made.embedding, "lm_head": made.lm_head, "layers": made.linears}
        for matrix, fmt in chosen.items():
            assert {made.format_of(name, parts[part]) for name in matrix.names for part in matrix.parts} == {fmt}
        if "lm_head=int8" in asked:
            assert (made.embedding, str(made.lm_head)) == (None, "int8:g32")
        if "w8a8" in asked:
            assert str(made.format_of("layers.0.o.weight", made.linears)) == "w8a8"


def test_names_are_joined_to_a_pattern_where_it_matches_no_other() -> None:
    experts = [f"l.0.experts.{i}.{kind}.weight" for i in range(12) for kind in ("gate", "up", "down")]
    others = ["l.0.shared_experts.up.weight", "l.1.experts.0.up.weight"]
    assert patterns_of(experts, [*experts, *others]) == ["l.0.experts.*.weight"]
    assert all(matches("l.0.experts.*.weight", name) for name in experts)
    assert patterns_of(["a.q.w", "a.k.w"], ["a.q.w", "a.k.w", "a.o.w"]) == ["a.q.w", "a.k.w"]
    assert patterns_of(["a.ww", "a.w"], ["a.w", "a.ww"]) == ["a.w*"]


@pytest.mark.parametrize("text", ["mixed:4.5", "kept", "kept,lm_head=int8,a.*=none,b.*=kept", "mixed:5,embedding=none"])
def test_a_choice_is_a_part_of_a_spec(text: str) -> None:
    spec = parse_spec(text)
    assert parse_spec(str(spec)) == spec
    assert spec.choices == ((KEPT,) if "kept" in text else (parse_spec(text).linears,))
    for target in ("onnx", "tensorrt"):
        with pytest.raises(InvalidOptionError, match=r"formats are chosen .* for target cpu alone"):
            TARGETS[target].parse_quantize(text)


@pytest.mark.parametrize(
    "text",
    ["mixed", "mixed:", "mixed:0.5", "mixed:33", "mixed:4.5.1", "int4,lm_head=mixed:4", "mixed:-4", "int4,a.*=mixed"],
)
def test_wrong_budgets_are_refused(text: str) -> None:
    with pytest.raises(InvalidOptionError, match="quantize"):
        parse_spec(text)
