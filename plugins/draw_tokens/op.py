"""draw_tokens(logits, draws):  the token that each row of logits gives, or -1 where this operation does not decide it

A row says in `draws` how its token is drawn: not at all, greedily, or from softmax(logits / temperature) after top_k,
top_p and min_p, as runtime/core/sampling draws it. The definition there adds weights in float64, one after the other.
Here weights and their sums are integers, so that no order of additions changes a bit; and a token is given only where
the rounding of both can make no difference. From another row the host draws by that definition. So a row gives the same
token, wherever it is drawn. Greedy rows compare float32 numbers, and give the lowest of the largest.

The weight of a score s = logits / temperature (float32) is 2^44 exp(s - largest), by integer arithmetic alone:
  x = (largest - s) 2^34, of the exact difference; 40 or more counts as 40
  t = x log2(e) 2^-2, a number with 32 bits behind the point
  2^-fraction(t) by a Taylor polynomial of degree 10 in 32 bits, and the whole part of t as a shift
A weight's relative error is below 2^-27, and less than 1 is cut off (tests/plugins/test_draw_tokens.py measures it).
So sums of n weights, and shares of sums, are known within `slack`.

A row is undecided, too, if a logit is NaN or +inf, if none is finite, if logits / temperature overflow, and if it has
more than CANDIDATES scores where it must order them: those within `reach` of the largest, at the first of LEVELS
reaches that holds all that top_k, top_p or min_p can keep.

logits: float32 [R, V].  draws: int32 [R, FIELDS], by the names of FIELDS.  tokens: int32 [R].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorwright.errors import GraphError
from tensorwright.ir.graph import Shape, Value
from tensorwright.ir.records import Op, metadata, rows

FIELDS = ("mode", "temperature", "top_k", "uniform", "kept_share", "distance", "unused0", "unused1")
"""The numbers of a row of `draws`:

mode: one of the modes below. temperature: the bits of the float32. top_k: 0, or as many as there are logits, for none.
uniform: the random number of the draw, in [0, 1), times 2^31. kept_share: a token stays while the weight of all
likelier ones is below this share of the total, times 2^31; -1 without top_p. distance: how far below the largest a
score may be, times 2^26; -1 without min_p.
"""
HOST, GREEDY, DRAWN = 0, 1, 2
"""The modes: the token is not drawn here, is the largest logit's, is drawn."""
MAX_VOCABULARY = 2**18
"""The most columns: a sum of their weights has 62 bits."""
MAX_DISTANCE = 31.0
"""A distance of min_p beyond this cuts off nothing that has a weight."""
CANDIDATES = 8192
"""The most scores that are put in order."""
LEVELS, STEP = 16, 0.75
"""Scores are counted within each of STEP, 2 STEP, ... of the largest, and at the last level all finite ones."""
LOG2E = (int(math.log2(math.e) * 2**23), round((math.log2(math.e) * 2**23 % 1) * 2**23))
"""log2(e) as two integers of 24 bits: a / 2^23 + b / 2^46."""
TAYLOR = tuple(round(2**32 * math.log(2) ** k / math.factorial(k)) for k in range(1, 11))
"""The coefficients of 2^-f = 1 - f (c1 - f (c2 - ...)), times 2^32."""
FUZZ = 2**12
"""The distance of a score from min_p's bound within which a row is undecided, times 2^34: 2^-24 by which a float32
weight is rounded, and the roundings of both distances, are less than a quarter of it."""


@dataclass(frozen=True)
class Draw:
    """How a row's token is drawn. The names and meanings are those of a request's sampling parameters; uniform is the
    random number in [0, 1)."""

    temperature: float
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    uniform: float = 0.0

    def fields(self) -> list[int]:
        """Returns the row of `draws`."""
        if self.temperature == 0:
            return [GREEDY, *[0] * (len(FIELDS) - 1)]
        temperature = int(np.float32(self.temperature).view(np.int32))
        return [DRAWN, temperature, self.top_k, int(self.uniform * 2**31), self._kept_share(), self._distance(), 0, 0]

    def _kept_share(self) -> int:
        if self.top_p >= 1:
            return -1
        # The definition compares in float32: a share stays if it is rounded to a number above this one.
        bound = np.float32(1.0 - self.top_p)
        middle = (float(bound) + float(np.nextafter(bound, np.float32(np.inf)))) / 2
        return int(max(1.0 - middle, 0.0) * 2**31)

    def _distance(self) -> int:
        far = -math.log(float(np.float32(self.min_p))) if np.float32(self.min_p) > 0 else math.inf
        return int(far * 2**26) if far < MAX_DISTANCE else -1


NOT_DRAWN = [HOST, *[0] * (len(FIELDS) - 1)]
"""The row of `draws` of a row that the host draws."""


def infer(inputs: Sequence[Value | None], attrs: dict[str, Any]) -> list[tuple[str, Shape]]:
    """Returns the type of the tokens. Raises GraphError for other shapes, and for too many columns."""
    logits, draws = inputs
    if logits is None or draws is None or len(logits.shape) != 2 or draws.shape != (logits.shape[0], len(FIELDS)):
        raise GraphError(f"draw_tokens: logits must be [R, V] and draws [R, {len(FIELDS)}]")
    columns = logits.shape[1]
    if not isinstance(columns, int) or not 1 <= columns <= MAX_VOCABULARY:
        raise GraphError(f"draw_tokens: a row must have 1 to {MAX_VOCABULARY} logits, got {columns}")
    return [("int32", (logits.shape[0],))]


def reference(inputs: Sequence[Any], attrs: dict[str, Any], act_dtype: str) -> list[np.ndarray]:
    """Returns the tokens, row by row."""
    logits, draws = np.asarray(inputs[0], np.float32), np.asarray(inputs[1], np.int32)
    return [np.array([draw_row(row, draw) for row, draw in zip(logits, draws, strict=True)], np.int32)]


def draw_row(logits: np.ndarray, fields: np.ndarray) -> int:
    """Returns the token of one row [V], or -1."""
    draw = dict(zip(FIELDS, (int(number) for number in fields), strict=True))
    if draw["top_k"] >= len(logits):
        draw["top_k"] = 0
    if draw["mode"] == HOST or np.isnan(logits).any() or not np.isfinite(logits.max()):
        return -1
    if draw["mode"] == GREEDY:
        return int(logits.argmax())
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        scores = logits / np.int32(draw["temperature"]).view(np.float32)
    largest = scores.max()
    if not np.isfinite(largest):
        return -1
    x = distances(largest, scores)
    w = weights(x)
    if draw["top_k"] <= 0 and draw["kept_share"] < 0 and draw["distance"] < 0:
        return _drawn(np.arange(len(w)), w, share_of(int(w.sum()), draw["uniform"]), slack(int(w.sum()), len(w)))
    level = first_level(scores, w, draw)
    inside = np.flatnonzero(scores >= reach(largest, level))
    if len(inside) > CANDIDATES:
        return -1
    return _draw_ordered(inside, scores[inside], x[inside], w[inside], int(w.sum()), draw, len(w))


def distances(largest: Any, scores: np.ndarray) -> np.ndarray:
    """Returns how far float32 scores are below the largest, times 2^34, as int64. The difference is exact: Knuth's
    two-sum gives what a float32 difference lacks."""
    largest = np.float32(largest)
    with np.errstate(invalid="ignore", over="ignore"):
        high = largest - scores
        part = high - largest
        low = (largest - (high - part)) - (scores + part)
    near = high < np.float32(40)
    whole = np.where(near, high, np.float32(40)) * np.float32(2**34)
    rest = np.where(near, low, np.float32(0)) * np.float32(2**34)
    total: np.ndarray = whole.astype(np.int64) + rest.astype(np.int64)
    return total


def weights(x: np.ndarray) -> np.ndarray:
    """Returns 2^44 exp(-x / 2^34), as int64."""
    t = (x * LOG2E[0] >> 25) + (x * LOG2E[1] >> 48)
    fraction = (t & 0xFFFFFFFF).astype(np.uint64)
    p = np.full(t.shape, TAYLOR[-1], np.uint64)
    for c in reversed((2**32 - 1, *TAYLOR[:-1])):
        p = np.uint64(c) - (p * fraction >> np.uint64(32))
    found: np.ndarray = ((p << np.uint64(12)) >> (t >> 32).astype(np.uint64)).astype(np.int64)
    return found


def share_of(total: int, share: int) -> int:
    """Returns a share, times 2^31, of a sum."""
    return (total >> 31) * share + ((total & (2**31 - 1)) * share >> 31)


def slack(total: int, count: int) -> int:
    """Returns how far a sum of weights, and a share of such a sum, may be from each other where they are equal by the
    definition: each is off by 2^-27 of it and 2 for each column, one cut off and one beyond MAX_DISTANCE."""
    return (total >> 25) + 4 * count


def reach(largest: Any, level: int) -> np.float32:
    """Returns the lowest score of a level."""
    return np.finfo(np.float32).min if level == LEVELS - 1 else np.float32(largest - np.float32(STEP * (level + 1)))


def first_level(scores: np.ndarray, w: np.ndarray, draw: dict[str, int]) -> int:
    """Returns the first level whose scores hold all that can stay. Of top_k, top_p and min_p the first that there is
    decides, since the others only take away from what it keeps."""
    total, largest = int(w.sum()), scores.max()
    for level in range(LEVELS - 1):
        bound = reach(largest, level)
        inside = scores >= bound
        if draw["top_k"] > 0:
            enough = int(inside.sum()) >= draw["top_k"]
        elif draw["kept_share"] >= 0:
            enough = int(w[inside].sum()) >= share_of(total, draw["kept_share"]) + slack(total, len(w))
        else:
            enough = int(distances(largest, np.array([bound]))[0]) > (draw["distance"] << 8) + FUZZ
        if enough:
            return level
    return LEVELS - 1


def _draw_ordered(
    ids: np.ndarray, scores: np.ndarray, x: np.ndarray, w: np.ndarray, total: int, draw: dict[str, int], columns: int
) -> int:
    """Draws from the candidates: their ids (ascending), scores, distances and weights. total: the row's weight."""
    order = np.lexsort((-ids, -scores))  # the likeliest first, of equal ones the highest id
    if draw["top_k"] > 0:
        lowest = scores[order[min(draw["top_k"], len(ids)) - 1]]
        w = np.where(scores >= lowest, w, 0)
        total = int(w.sum())
    upto = np.cumsum(w[order])
    mass = int(upto[-1])
    if draw["kept_share"] >= 0:
        limit, unsure = share_of(total, draw["kept_share"]), slack(total, columns)
        last = int(np.searchsorted(upto, limit, side="right"))
        if last == len(ids):
            return -1
        before = int(upto[last - 1]) if last else 0
        if not _sure(before, int(upto[last]), limit, unsure):
            return -1
        mass = int(upto[last])
    if draw["distance"] >= 0:
        bound = draw["distance"] << 8
        stays = (x <= bound - FUZZ) | (scores == scores.max())
        if (w[(x <= bound + FUZZ) & ~stays] > 0).any():
            return -1
        w = np.where(stays, w, 0)
        mass = min(mass, int(w.sum()))
    if draw["kept_share"] < 0:
        order = np.arange(len(ids))
    return _drawn(ids[order], w[order], share_of(mass, draw["uniform"]), slack(mass, columns))


def _drawn(ids: np.ndarray, w: np.ndarray, target: int, unsure: int) -> int:
    """Returns the first id with which the sum of the weights passes the target, if that is sure."""
    upto = np.cumsum(w)
    at = int(np.searchsorted(upto, target, side="right"))
    if at == len(ids) or not _sure(int(upto[at - 1]) if at else 0, int(upto[at]), target, unsure):
        return -1
    return int(ids[at])


def _sure(before: int, upto: int, target: int, unsure: int) -> bool:
    """Whether a token is that of the definition: nothing is before it, or enough is between; and so behind it."""
    return upto - target > unsure and (before == 0 or target - before > unsure)


RESULTS = (rows("tokens"),)
OP = Op(
    "draw_tokens",
    operands=(rows("logits"), metadata("draws")),
    results=RESULTS,
    stages=("cached",),
    infer=infer,
    reference=reference,
    per_token=True,
    sums=True,
)
