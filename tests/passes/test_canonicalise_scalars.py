import pytest

from support.pass_graphs import assert_fires, assert_silent, graph_of, ops
from tensorwright.passes.canonicalise_scalars import canonicalise_scalars

X = "  %x: float32[1, seq] = input()\n"


def scalar(op, number, *, first=False, dtype="float64"):
    operands = "%c, %x" if first else "%x, %c"
    return graph_of(
        f"{X}  %c: {dtype}[] = constant() {{value = {number}}}\n  %y: float32[1, seq] = {op}({operands})\n  return %y"
    )


@pytest.mark.parametrize(
    ("op", "number", "first", "expected"),
    [
        ("pow", 2, False, ["mul"]),
        ("pow", 3, False, ["mul", "mul"]),
        ("pow", 3.0, False, ["mul", "mul"]),
        ("sub", 1.5, False, ["add"]),
        ("div", 8.0, False, ["mul"]),
        ("mul", 3.0, True, ["mul"]),
        ("add", 3.0, True, ["add"]),
        ("mul", 1.0, False, []),
    ],
)
def test_one_spelling_same_bits(op, number, first, expected):
    dtype = "int64" if isinstance(number, int) else "float64"
    after = assert_fires(canonicalise_scalars, scalar(op, number, first=first, dtype=dtype), 1, exact=True)
    assert ops(after) == expected


def test_an_inverse_root():
    graph = graph_of(
        X + "  %a: float32[1, seq] = abs(%x)\n  %c: float64[] = constant() {value = -0.5}\n"
        "  %y: float32[1, seq] = pow(%a, %c)\n  return %y"
    )
    assert ops(assert_fires(canonicalise_scalars, graph, 1, exact=True)) == ["abs", "rsqrt"]


def test_a_square_is_a_product():
    graph = graph_of(X + "  %y: float32[1, seq] = square(%x)\n  return %y")
    assert ops(assert_fires(canonicalise_scalars, graph, 1, exact=True)) == ["mul"]


@pytest.mark.parametrize(
    ("op", "number", "first"),
    [("pow", 4, False), ("div", 3.0, False), ("div", 8.0, True), ("sub", 1.0, True), ("mul", 2.0, False)],
)
def test_what_would_change_bits_or_is_canonical_stays(op, number, first):
    dtype = "int64" if isinstance(number, int) else "float64"
    assert_silent(canonicalise_scalars, scalar(op, number, first=first, dtype=dtype))


def test_integer_division_stays():
    assert_silent(
        canonicalise_scalars,
        graph_of("""
          %x: int64[1, seq] = input()
          %c: int64[] = constant() {value = 2}
          %y: float32[1, seq] = div(%x, %c)
          return %y
        """),
    )


def test_the_base_of_a_square_may_have_other_users():
    graph = graph_of(X + "  %y: float32[1, seq] = square(%x)\n  %z: float32[1, seq] = add(%y, %x)\n  return %z, %y")
    assert ops(assert_fires(canonicalise_scalars, graph, 1, exact=True)) == ["mul", "add"]


def test_pinned_counts(model):
    assert model.count("canonicalise_scalars") == 8


@pytest.mark.parametrize(("bounds", "left"), [("inf", []), ("none", []), ("7.0", ["clamp"])])
def test_a_clamp_between_infinities_is_none(bounds, left):
    graph = graph_of(f"{X}  %y: float32[1, seq] = clamp(%x) {{max = {bounds}, min = none}}\n  return %y")
    assert canonicalise_scalars(graph) == (0 if left else 1)
    assert ops(graph) == left
