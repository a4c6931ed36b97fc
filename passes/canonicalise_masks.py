"""canonicalise_masks:  every way to hide scores before a softmax, and every bias  ->  one sum, scores + bias

    where(seen, scores, low)              ->  scores + where(seen, 0, low)            low: -1e30 or less
    where(hidden, low, scores)            ->  scores + where(hidden, low, 0)
    (scores + a) + b                      ->  scores + (a + b)
    (scores + a) * c + b                  ->  scores * c + (a * c + b)
    max(scores + a, low)                  ->  scores + a
    scores * b + (1 - b) * low            ->  scores + where(b == 1, 0, -inf)         b: 0 or 1; low: -10000 or less

`a`, `b`, `seen` and `hidden` depend on positions alone, `c` is a number. Each form ends in a softmax, where a score of
-1e30 has a probability of zero beside any score that is not hidden, and some score never is: that of the token itself.
The last form is that of GPT, which was to run in float16. There a score of -10000 has a probability of zero too, beside
any score above -9890, which all scores of such a model are.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tensorwright.ir import Graph, Value
from tensorwright.passes.recognise_masks import HIDDEN, cone, depends_on_positions_only
from tensorwright.passes.rewriting.matcher import Match, Pattern, apply, pattern
from tensorwright.passes.rewriting.rewriter import Rewriter

CHOSEN = pattern(
    """
    masked = where(seen, scores, low)
    out    = softmax(add?(masked, mask), dim=dim)
    """,
    commute=True,
)
FILLED = pattern(
    """
    masked = where(hidden, low, scores)
    out    = softmax(add?(masked, mask), dim=dim)
    """,
    commute=True,
)
PATTERN = pattern("out = softmax(add(add(scores, a), b), dim=dim)", commute=True)
SCALED = pattern("out = softmax(add(mul(add(scores, a), c), b), dim=dim)", commute=True)
BOUNDED = pattern("out = softmax(maximum(add(scores, a), low), dim=dim)", commute=True)
MIXED = pattern(
    """
    masked = add(mul(scores, b), mul(sub(1, b), low))
    out    = softmax(add?(masked, mask), dim=dim)
    """,
    commute=True,
)

LOW_OF_GPT = -1e4
"""The score that GPT gives to what it hides."""


def require_scores(m: Match, *biases: Value) -> None:
    for bias in biases:
        m.require(depends_on_positions_only(bias), "it does not depend on positions alone", bias)
    m.require(m.scores.rank == m.out.rank, "scores of another rank than the softmax", m.scores)
    m.require(not depends_on_positions_only(m.scores), "no scores, but a bias", m.scores)


def require_low(m: Match) -> None:
    node = m.low.node
    filled = node is not None and node.op == "full" and m.low.rank == 0
    low = node.attrs["value"] if filled else m.scalar(m.low)
    m.require(low <= HIDDEN, "it does not hide a score", m.low)


def check_chosen(m: Match) -> None:
    require_low(m)
    require_scores(m, m.seen, *([] if m.mask is None else [m.mask]))


def check_filled(m: Match) -> None:
    require_low(m)
    require_scores(m, m.hidden, *([] if m.mask is None else [m.mask]))


def check(m: Match) -> None:
    require_scores(m, m.a, m.b)


def check_scaled(m: Match) -> None:
    m.scalar(m.c)
    require_scores(m, m.a, m.b)


def check_mixed(m: Match) -> None:
    m.require(m.scalar(m.low) <= LOW_OF_GPT, "it does not hide a score", m.low)
    tables = [node.output for node in cone(m.b) if node.op == "constant"]
    for table in tables:
        m.require(np.isin(table.constant, (0, 1)).all(), "it is neither 0 nor 1 everywhere", m.b)
    moved = all(node.op in ("constant", "slice", "view") for node in cone(m.b))
    m.require(moved and tables, "it is computed, so that its values are not known", m.b)
    require_scores(m, m.b, *([] if m.mask is None else [m.mask]))


def check_bounded(m: Match) -> None:
    require_low(m)
    require_scores(m, m.a)


def biased(m: Match, g: Rewriter, scores: Value, bias: Value, more: Value | None = None) -> Value:
    """Returns the softmax of scores + (bias + more)."""
    total = bias if more is None else g.add("add", bias, more)
    out: Value = g.softmax(g.add("add", scores, total), dim=m.dim)
    return out


def replace_chosen(m: Match, g: Rewriter) -> Value:
    return biased(m, g, m.scores, g.where(m.seen, g.constant(0.0, "float32"), m.low), m.mask)


def replace_filled(m: Match, g: Rewriter) -> Value:
    return biased(m, g, m.scores, g.where(m.hidden, m.low, g.constant(0.0, "float32")), m.mask)


def replace_mixed(m: Match, g: Rewriter) -> Value:
    hidden = g.where(g.eq(m.b, g.constant(1.0, "float32")), g.constant(0.0, "float32"), g.constant(-np.inf, "float32"))
    return biased(m, g, m.scores, hidden, m.mask)


RULES: tuple[tuple[Pattern, Callable[[Match], None], Callable[[Match, Rewriter], Value]], ...] = (
    (CHOSEN, check_chosen, replace_chosen),
    (FILLED, check_filled, replace_filled),
    (MIXED, check_mixed, replace_mixed),
    (PATTERN, check, lambda m, g: biased(m, g, m.scores, m.a, m.b)),
    (SCALED, check_scaled, lambda m, g: biased(m, g, g.mul(m.scores, m.c), g.mul(m.a, m.c), m.b)),
    (BOUNDED, check_bounded, lambda m, g: biased(m, g, m.scores, m.a)),
)


def canonicalise_masks(graph: Graph) -> int:
    """Returns the number of rewrites. One form may show another, so all are tried until none is left."""
    total, count = 0, 1
    while count:
        count = sum(apply(graph, form, test, make) for form, test, make in RULES)
        total += count
    return total
