"""Symbolic sizes compute what integers do; what bounds decide is no branch; what a plan cannot hold is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.cuda_plan import evaluate
from tensorwright.builder.emit.cuda.addresses import WEIGHT, Address
from tensorwright.builder.emit.cuda.sizes import Expressions, Size, Variable
from tensorwright.builder.emit.cuda.trace_launches import MAX_PATHS, Branch, Leaf, Refused, trace
from tensorwright.errors import KernelError
from tensorwright.plugins.gpu.launch import ceil_div, next_power_of_2


def make(low: int = 1, high: int = 1000) -> tuple[Expressions, Size, Size]:
    expressions = Expressions((Variable("tokens", low, high), Variable("rows", 0, high)))
    return expressions, expressions.variable(0), expressions.variable(1)


def found(expressions: Expressions, nodes: tuple, values: list[int]) -> object:
    """The outcome at these sizes: the path's result, or the refusal's text."""
    node = nodes[0]
    while isinstance(node, Branch):
        node = nodes[node.if_true if evaluate(expressions.items, node.condition, values) else node.if_false]
    if isinstance(node, Refused):
        return node.why
    return tuple(evaluate(expressions.items, one, values) if isinstance(one, int) else one for one in node.launches)


def some_function(tokens, rows) -> tuple:
    """Branches and arithmetic as launch.py files have them."""
    if rows == 0:
        return ()
    tile = min((size for size in (8, 16, 64) if size >= tokens), default=64)
    splits = max(min(132 // max(ceil_div(tokens, tile) * 3, 1), tokens // 4, 16), 1)
    if tokens * rows > 5000 and tokens != 7:
        raise KernelError(f"{tile} is too small")
    power = next_power_of_2(tokens)
    return (ceil_div(tokens, tile), splits, rows - 2 * tokens, -rows % 7, 100 // tokens, power, tile)


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 200), st.integers(0, 200))
def test_a_tree_equals_the_function_at_every_size(tokens: int, rows: int) -> None:
    expressions, tree = _tree()
    try:
        wanted: object = some_function(tokens, rows)
    except KernelError as error:
        wanted = str(error)
    assert found(expressions, tree, [tokens, rows]) == wanted


_made: list = []


def _tree() -> tuple[Expressions, tuple]:
    if not _made:
        expressions, tokens, rows = make(high=200)
        run = lambda: tuple(expressions.number_of(one) for one in some_function(tokens, rows))  # noqa: E731
        _made.append((expressions, trace(expressions, run)))
    return _made[0]


def test_bounds_decide_what_needs_no_branch() -> None:
    _, tokens, rows = make()
    assert (tokens == 0) is False
    assert (tokens * 3 >= 3) is True
    assert (ceil_div(tokens, 16) <= 63) is True
    assert (rows + 1 > 0) is True
    assert (tokens == tokens * 1 + 0) is True
    with pytest.raises(KernelError, match="open at build time"):
        bool(tokens > 5)


def test_an_answer_narrows_what_follows() -> None:
    """On the path where rows * 8 is not 0, a grid of ceil(rows / 4) programs is at least 1."""
    expressions, _, rows = make()
    with expressions.following([False]) as path:
        assert rows * 8 != 0
        assert (ceil_div(rows, 4) >= 1) is True
        assert len(path.taken) == 1


def test_equal_ends_are_one_and_children_follow_their_parents() -> None:
    expressions, tokens, _ = make()
    nodes = trace(expressions, lambda: (1,) if tokens < 10 or tokens > 20 else (2,))
    assert sum(isinstance(node, Leaf) for node in nodes) == 2
    for number, node in enumerate(nodes):
        assert not isinstance(node, Branch) or number < min(node.if_true, node.if_false)
    assert len(trace(expressions, lambda: (int(bool(tokens < 10)) * 0,))) == 1


def test_what_is_refused_at_every_size_is_refused_at_build_time() -> None:
    expressions, tokens, _ = make()

    def run() -> tuple:
        raise KernelError("too wide" if tokens > 5 else "too narrow")

    with pytest.raises(KernelError, match=r"too (wide|narrow)"):
        trace(expressions, run)


def test_too_many_paths_are_refused() -> None:
    expressions, tokens, _ = make(high=10**6)
    with pytest.raises(KernelError, match=f"more than {MAX_PATHS} paths"):
        trace(expressions, lambda: (sum(bool(tokens % (i + 2) == 1) for i in range(20)),))


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (lambda tokens: range(tokens), "a plain number is needed"),
        (lambda tokens: 5 // (tokens - 1), "may be 0 or less in some step"),
        (lambda tokens: Address(WEIGHT) + tokens, "by a number of bytes that is known"),
        (lambda tokens: Address(WEIGHT) % 48, "which 48 does not divide"),
    ],
)
def test_what_no_plan_can_hold_is_refused_by_name(misuse, message: str) -> None:
    _, tokens, _ = make()
    with pytest.raises(KernelError, match=message):
        misuse(tokens)
