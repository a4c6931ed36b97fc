"""Symbolic dimensions: one spelling, exact arithmetic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorwright.errors import GraphError
from tensorwright.ir import dims


@pytest.mark.parametrize(
    ("dim", "spelling"),
    [
        (4, 4),
        ("4", 4),
        ("seq", "seq"),
        ("1 + seq", "seq + 1"),
        ("seq*2 - seq", "seq"),
        ("seq - seq", 0),
        ("-seq + 3", "-seq + 3"),
        ("tokens*seq*2", "2*seq*tokens"),
        ("(seq + 1) // 2", "((seq + 1) // 2)"),
        ("((seq + 1) // 2)*2", "2*((seq + 1) // 2)"),
        ("(seq*8) // 8", "seq"),
        ("(seq // 2) + (seq // 3)", "(seq // 2) + (seq // 3)"),
        ("(-7) // 2", -4),
    ],
)
def test_one_spelling(dim, spelling):
    assert dims.canonical(dim) == spelling
    assert dims.canonical(spelling) == spelling


def test_arithmetic():
    assert dims.add("seq", 1, "seq") == "2*seq + 1"
    assert dims.sub("seq + 1", "seq") == 1
    assert dims.mul("seq", 4, 8) == "32*seq"
    assert dims.mul() == 1
    assert dims.mul("seq", 0) == 0
    assert dims.floor_div("4*seq*seq", "2*seq") == "2*seq"
    assert dims.floor_div("seq + 1", "seq + 1") == 1
    assert dims.same("seq + 1", "1 + seq")
    assert not dims.same("seq + 1", "seq")


def test_symbols():
    assert dims.symbols("seqs + 1") == {"seqs"}
    assert dims.symbols(3) == set()


@pytest.mark.parametrize("bad", ["", "seq +", "seq / 2", "f(seq)", "seq**2", "1.5", None, True, 2.0, "seq // 0"])
def test_what_is_no_dimension_is_refused(bad):
    with pytest.raises(GraphError, match="a dimension"):
        dims.canonical(bad)
    assert not dims.is_canonical(bad)


@pytest.mark.parametrize(
    "large",
    [
        "-" * 5000 + "seq", "-" * 990 + "seq", "*".join(["seq"] * 5000), "9" * 900, "9" * 5000, "0x" + "f" * 900,
        "*".join(f"(a{i} + b{i})" for i in range(25)),
    ],
    ids=lambda dim: f"{dim[:12]}-{len(dim)}",
)  # fmt: skip
def test_what_takes_more_than_its_length_is_refused(large):
    """It is text of a file: no expression may take the stack, the memory or the time that its length could."""
    with pytest.raises(GraphError, match="a dimension must"):
        dims.canonical(large)


def test_a_long_dimension():
    assert dims.canonical("seq + " * 160 + "1") == "160*seq + 1"
    assert dims.canonical("(" * 150 + "1" + ")" * 150) == 1


def test_a_symbol_without_a_value_is_named():
    with pytest.raises(GraphError, match="needs a value for rows"):
        dims.evaluate("rows + 1", {"tokens": 3})


EXPRESSIONS = st.recursive(
    st.sampled_from(["seq", "tokens"]) | st.integers(-5, 9).map(str),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*"]), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        st.tuples(inner, st.integers(1, 7)).map(lambda t: f"({t[0]} // {t[1]})"),
    ),
    max_leaves=6,
)


@given(EXPRESSIONS, st.integers(0, 50), st.integers(0, 50))
def test_the_spelling_has_the_value_of_the_expression(text, seq, tokens):
    bindings = {"seq": seq, "tokens": tokens}
    assert dims.evaluate(dims.canonical(text), bindings) == eval(text, {}, bindings)
    assert dims.is_canonical(dims.canonical(text))
