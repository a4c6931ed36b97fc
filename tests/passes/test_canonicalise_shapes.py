import pytest

from support.pass_graphs import assert_fires, assert_silent, graph_of, ops
from tensorwright.passes.canonicalise_shapes import canonicalise_shapes

X = "  %x: float32[1, seq, 4, 6] = input()\n"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("%y: float32[1, seq, 1, 4, 6] = unsqueeze(%x) {dim = 2}", ["view"]),
        ("%y: float32[seq, 4, 6] = squeeze(%x) {dim = 0}", ["view"]),
        ("%y: float32[1, 4, seq, 6] = permute(%x) {dims = (0, 2, 1, 3)}", ["transpose"]),
        ("%y: float32[1, 4, 6, seq] = permute(%x) {dims = (0, 2, 3, 1)}", ["transpose", "transpose"]),
        ('%y: float32[1, seq, 4, 6] = view(%x) {shape = (1, "seq", 4, 6)}', []),
        ('%y: float32[1, seq, 4, 6] = expand(%x) {shape = (1, "seq", 4, 6)}', []),
        ("%y: float32[1, seq, 4, 6] = slice(%x) {dim = 3, start = 0, end = 6, step = 1}", []),
        ("%y: float32[1, seq, 4, 6] = concat(%x) {dim = 1}", []),
    ],
)
def test_one_spelling(line, expected):
    after = assert_fires(canonicalise_shapes, graph_of(f"{X}  {line}\n  return %y"), 1, exact=True)
    assert ops(after) == expected


TRANSPOSES = """
  %t: float32[1, 4, seq, 6] = transpose(%x) {dim0 = 1, dim1 = 2}
  %y: float32[1, seq, 4, 6] = transpose(%t) {dim0 = 2, dim1 = 1}
"""
VIEWS = """
  %v: float32[1, seq, 24] = view(%x) {shape = (1, "seq", 24)}
  %y: float32[seq, 24] = view(%v) {shape = ("seq", 24)}
"""


def test_transposes_cancel():
    assert ops(assert_fires(canonicalise_shapes, graph_of(X + TRANSPOSES + "  return %y"), 1, exact=True)) == []


def test_views_merge():
    assert ops(assert_fires(canonicalise_shapes, graph_of(X + VIEWS + "  return %y"), 1, exact=True)) == ["view"]


def test_the_inner_ones_stay_where_others_use_them():
    after = assert_fires(canonicalise_shapes, graph_of(X + TRANSPOSES + "  return %y, %t"), 1, exact=True)
    assert ops(after) == ["transpose"]
    after = assert_fires(canonicalise_shapes, graph_of(X + VIEWS + "  return %y, %v"), 1, exact=True)
    assert ops(after) == ["view", "view"]


@pytest.mark.parametrize(
    "line",
    [
        "%y: float32[4, 6, 1, seq] = permute(%x) {dims = (2, 3, 0, 1)}",
        "%y: float32[1, seq, 4, 3] = slice(%x) {dim = 3, start = 0, end = 6, step = 2}",
        "%y: float32[1, seq, 6, 4] = transpose(%x) {dim0 = 2, dim1 = 3}",
    ],
)
def test_what_moves_elements_stays(line):
    assert_silent(canonicalise_shapes, graph_of(f"{X}  {line}\n  return %y"))


def test_a_transpose_of_one_head_stays_a_transpose():
    assert_silent(
        canonicalise_shapes,
        graph_of("""
          %x: float32[1, seq, 1, 6] = input()
          %y: float32[1, 1, seq, 6] = transpose(%x) {dim0 = 1, dim1 = 2}
          return %y
        """),
    )


def test_pinned_counts(model):
    assert model.count("canonicalise_shapes") == 36


NORM = """
  %w: float32[6] = weight() {expr = @"w"}
  %t: float32[1, 4, seq, 6] = transpose(%x) {dim0 = 1, dim1 = 2}
  %y: float32[1, 4, seq, 6] = rms_norm(%t, %w) {eps = 1e-05, weight_offset = 1.0}
"""


def test_norms_of_heads_come_before_transposes():
    """Where q and k are normalised after heads and tokens changed places (EXAONE 4, Gemma 3)."""
    after = assert_fires(canonicalise_shapes, graph_of(X + NORM + "  return %y", "fused"), 1)
    assert ops(after) == ["rms_norm", "transpose"]
    assert after.find("rms_norm")[0].attrs == {"eps": 1e-05, "weight_offset": 1.0}


def test_a_transpose_that_others_use_stays_before_the_norm():
    assert_silent(canonicalise_shapes, graph_of(X + NORM + "  return %y, %t", "fused"))


def test_a_transpose_of_the_normalised_columns_stays():
    moved = NORM.replace("[1, 4, seq, 6]", "[1, seq, 6, 4]").replace("float32[6]", "float32[4]")
    moved = moved.replace("dim0 = 1, dim1 = 2", "dim0 = 2, dim1 = 3")
    assert_silent(canonicalise_shapes, graph_of(X + moved + "  return %y", "fused"))


SHARED_HEAD = """
  %x: float32[1, seq, 5] = input()
  %w: float32[12, 5] = weight() {expr = @"w"}
  %row: float32[1, seq, 12] = linear(%x, %w)
  %wide: float32[1, 1, seq, 12] = view(%row) {shape = (1, 1, "seq", 12)}
  %k: float32[1, 1, seq, 4] = slice(%wide) {dim = 3, start = 8, end = 12, step = 1}
  %y: float32[1, 1, seq, 4] = neg(%k)
"""


def test_a_slice_of_a_wider_linear_is_a_slice_of_the_linear():
    after = assert_fires(canonicalise_shapes, graph_of(SHARED_HEAD + "  return %y"), 1, exact=True)
    assert ops(after) == ["linear", "slice", "view", "neg"]


def test_slices_of_what_is_no_linear_stay():
    graph = graph_of(SHARED_HEAD.replace("linear(%x, %w)", "input()") + "  return %y")
    assert_silent(canonicalise_shapes, graph)
