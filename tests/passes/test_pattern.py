"""The pattern language: what text means, and what is not in it."""

import pytest

from tensorwright.passes.rewriting.pattern import AttrVar, Call, Literal, Var, pattern


def test_names_nesting_attributes_and_optional_parts():
    p = pattern("""
        wide = cast?(x, dtype="float32")
        out  = linear(add(wide, 1.5), w, bias?, dim=-1, step=n)
    """)
    wide = Call("cast", (Var("x"),), (("dtype", "float32"),), True, ("wide",))
    total = Call("add", (wide, Literal(1.5)))
    attrs = (("dim", -1), ("step", AttrVar("n")))
    assert p.root == Call("linear", (total, Var("w"), Var("bias", True)), attrs, False, ("out",))
    assert p.outputs == ("out",)
    assert p.names == {"wide", "out", "x", "w", "bias", "n"}


def test_several_results():
    p = pattern("y, s = add_rms_norm(x, r, w)\nout = add(y, s)", outputs=["out", "s"])
    first, second = p.root.args
    assert (first.result, second.result) == (0, 1)
    assert p.outputs == ("out", "s")


@pytest.mark.parametrize(
    ("text", "options", "reason"),
    [
        ("", {}, "needs a last line"),
        ("add(x, y)", {}, "must be `name = op"),
        ("a = x", {}, "must name a new op"),
        ("a = neg(x)\na = exp(a)", {}, "named twice"),
        ("a = neg(x)\nb = a", {}, "must name a new op"),
        ("a = neg('x')", {}, "must be a name, an op or a number"),
        ("a = either(neg(x), exp(x))", {}, "not a choice"),
        ("a = neg(x)", {"outputs": ["b"]}, "no line defines"),
        ("a = neg(x)", {"shared": ["x"]}, "no line defines"),
    ],
)
def test_what_is_not_in_the_language(text, options, reason):
    with pytest.raises(ValueError, match=reason):
        pattern(text, **options)
