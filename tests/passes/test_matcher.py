"""The matcher: backtracking, unification, users outside the match, and how it explains itself."""

import pytest

from support.pass_graphs import assert_silent, graph_of, ops
from tensorwright.passes.rewriting.matcher import apply, closest, find_miss, match_value, pattern

X = "  %x: float32[1, seq, 4] = input()\n  %z: float32[1, seq, 4] = input()\n"


def lines(*rows):
    return X + "".join(f"  %{name}: float32[1, seq, 4] = {rest}\n" for name, rest in rows)


def count(graph, spelling, check=None):
    return apply(graph, spelling, check, lambda m, g: g.neg(m.x))


def test_commuted_operands_and_repeated_variables():
    p = pattern("out = mul(add(x, y), x)", commute=True)
    for body in (("add(%x, %z)", "mul(%a, %x)"), ("add(%z, %x)", "mul(%a, %x)"), ("add(%z, %x)", "mul(%x, %a)")):
        graph = graph_of(lines(("a", body[0]), ("y", body[1])) + "  return %y")
        assert count(graph, p) == 1
        assert ops(graph) == ["neg"]
    graph = graph_of(lines(("a", "add(%z, %z)"), ("y", "mul(%a, %x)")) + "  return %y")
    assert count(graph, p) == 0


def test_order_matters_unless_told_otherwise():
    p = pattern("out = mul(exp(x), y)")
    graph = graph_of(lines(("a", "exp(%x)"), ("y", "mul(%z, %a)")) + "  return %y")
    assert count(graph, p) == 0


def test_backtracks_when_check_refuses():
    """The first way to match binds w to %z; only the second passes."""
    p = pattern("out = add(neg?(x), w)", commute=True)
    graph = graph_of(lines(("a", "neg(%x)"), ("y", "add(%z, %a)")) + "  return %y")
    wanted = graph.value("x")
    match = match_value(graph.value("y"), p, lambda m: m.require(m.x is wanted, "not x"))
    assert match is not None
    assert match.w is graph.value("z")


def test_optional_ops_choices_and_absent_operands():
    p = pattern("""
        soft = tanh(x)
        out  = exp(either(neg(soft), x))
    """)
    one = graph_of(lines(("a", "tanh(%x)"), ("b", "neg(%a)"), ("y", "exp(%b)")) + "  return %y")
    two = graph_of(lines(("y", "exp(%x)")) + "  return %y")
    assert match_value(one.value("y"), p).soft is one.value("a")
    assert match_value(two.value("y"), p).soft is None
    q = pattern("out = linear(x, w, bias?)")
    body = X + '  %w: float32[4, 4] = weight() {expr = @"w"}\n  %y: float32[1, seq, 4] = linear(%x, %w)\n  return %y'
    assert match_value(graph_of(body).value("y"), q).bias is None


def test_a_name_the_pattern_lacks_is_an_error():
    graph = graph_of(lines(("y", "exp(%x)")) + "  return %y")
    with pytest.raises(AttributeError, match="no name 'bais'"):
        _ = match_value(graph.value("y"), pattern("out = exp(x)")).bais


def test_negative_dims_count_from_the_operand():
    p = pattern("out = mean(x, dims=[-1], keepdim=True)")
    graph = graph_of(X + "  %y: float32[1, seq, 1] = mean(%x) {dims = (2,), keepdim = true}\n  return %y")
    assert match_value(graph.value("y"), p) is not None
    graph = graph_of(X + "  %y: float32[1, 1, 4] = mean(%x) {dims = (1,), keepdim = true}\n  return %y")
    assert match_value(graph.value("y"), p) is None


def test_attributes_unify():
    p = pattern("out = add(slice(x, dim=d, end=n), slice(y, dim=d, start=n))")
    first = "slice(%x) {dim = 2, start = 0, end = 2, step = 1}"
    for start, end, matches in ((2, 4, True), (1, 3, False)):
        body = (
            f"{X}  %a: float32[1, seq, 2] = {first}\n"
            f"  %b: float32[1, seq, 2] = slice(%z) {{dim = 2, start = {start}, end = {end}, step = 1}}\n"
            "  %y: float32[1, seq, 2] = add(%a, %b)\n  return %y"
        )
        assert (match_value(graph_of(body).value("y"), p) is not None) == matches


def test_bind_shape():
    body = '  %x: float32[1, seq, 2, 3] = input()\n  %y: float32[1, seq, 6] = view(%x) {shape = (1, "seq", 6)}\n'
    graph = graph_of(body + "  return %y")
    p = pattern("out = view(x)")

    def bind(*pairs):
        def check(m):
            for name, letters in pairs:
                m.bind_shape(getattr(m, name), letters)

        return match_value(graph.value("y"), p, check)

    match = bind(("x", "1 S H D"), ("out", "1 S H*D"), ("out", "... C"))
    assert match.dims == {"S": "seq", "H": 2, "D": 3, "C": 6}
    assert bind(("x", "1 S H H")) is None
    assert bind(("x", "S H D")) is None
    assert bind(("x", "2 S H D")) is None
    assert bind(("x", "1 S H D"), ("out", "1 S H")) is None


def test_users_outside_refuse_a_match_unless_listed():
    body = lines(("a", "exp(%x)"), ("y", "neg(%a)"), ("b", "neg(%a)"))
    inner = "a = exp(x)\nout = neg(a)"
    graph = graph_of(body + "  return %y, %b")
    assert_silent(lambda g: apply(g, pattern(inner), None, lambda m, r: m.x), graph)
    assert "it is also used by %y (neg" in closest(graph, pattern(inner))
    assert apply(graph.clone(), pattern(inner, shared=["a"]), None, lambda m, r: m.x) == 2
    with_output = pattern(inner, outputs=["out", "a"])
    assert apply(graph.clone(), with_output, None, lambda m, r: (m.x, r.tanh(m.x))) >= 1


def test_overlapping_matches_are_rewritten_one_after_the_other():
    p = pattern("out = exp(exp(x))")
    graph = graph_of(lines(("a", "exp(%x)"), ("b", "exp(%a)"), ("c", "exp(%b)"), ("y", "exp(%c)")) + "  return %y")
    assert apply(graph, p, None, lambda m, g: g.tanh(m.x)) == 2
    assert ops(graph) == ["tanh", "tanh"]


def test_reasons_are_made_only_when_read():
    made = []
    p = pattern("out = exp(x)")
    graph = graph_of(lines(("y", "exp(%x)")) + "  return %y")
    miss = find_miss(graph, p, lambda m: m.require(False, lambda: made.append(1) or "because", m.x))
    assert made == []
    kind = "float32[1, seq, 4]"
    assert str(miss) == f"1 ops matched up from %y (exp {kind}), then: because at %x (input {kind})"
    assert made == [1]


def test_the_closest_miss_can_be_asked_about_one_node():
    p = pattern("out = tanh(exp(neg(x)))")
    body = lines(("a", "neg(%x)"), ("b", "exp(%a)"), ("c", "sigmoid(%b)"), ("d", "exp(%z)"), ("y", "tanh(%d)"))
    graph = graph_of(body + "  return %c, %y")
    assert "it is not neg at %z" in closest(graph, p)
    assert find_miss(graph, p, through=graph.value("c").node) is None
    assert find_miss(graph, p, through=graph.value("d").node) is not None
