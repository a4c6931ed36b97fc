"""route(logits, bias?, expert_scales?){k, normalise, ...}:  the k experts of each row, best first, and their weights

A row's scores are s = softmax(logits), or s = sigmoid(logits) where `score` says so.  What experts are chosen by is
c = logits, or c = s `by_scores`, plus the bias.  index: the places of the k largest of c; of equal ones the lowest
comes first, and a NaN counts as the largest.  weights: s at these places, divided by max(their sum, least) + epsilon
if `normalise`, times `scale`, and times the number of `expert_scales` at the same place. The bias is for the choice
alone.

groups: the experts are in as many groups of the same size, of which the `group_limit` with the largest sums of the
`group_best` largest c count. The c of other experts is minus infinity, or 0 if `keeps_others`.

score "sparsemixer" (PhiMoE): each slot takes the largest of the logits that are left, l.  Its weight is the softmax
over those left whose distance from l is at most 2 * jitter * max(|logit|, l).

logits: [..., E], bias: [E], expert_scales: [E].  index: int32 [..., k], weights: float32 [..., k].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorwright.errors import GraphError
from tensorwright.ir.graph import Shape, Value
from tensorwright.ir.records import Instruction, Op, rows, shared

MAX_COMPARISONS = 2**20
"""Equal to TW_MAX_ROUTE_COMPARISONS of layout.h: the most experts times k, which are looked at for each row."""

SCORES = ("softmax", "sigmoid", "sparsemixer")

DEFAULTS: dict[str, Any] = {
    "score": "softmax",
    "by_scores": False,
    "groups": 1,
    "group_limit": 1,
    "group_best": 1,
    "keeps_others": False,
    "scale": 1.0,
    "epsilon": 0.0,
    "least": 0.0,
    "jitter": 0.0,
}
"""The values of the attributes that a node may lack."""


def infer(inputs: Sequence[Value | None], attrs: dict[str, Any]) -> list[tuple[str, Shape]]:
    """Returns the types of index and weights. Raises GraphError if there are fewer experts than k, or far too many."""
    logits, *vectors = inputs
    if logits is None:
        raise GraphError("route: logits must be present")
    experts, k = logits.shape[-1], attrs["k"]
    if not isinstance(experts, int) or not 1 <= k <= experts:
        raise GraphError(f"route: k must be 1 to the number of experts, {experts}, got {k}")
    if experts * k > MAX_COMPARISONS:
        raise GraphError(f"route: experts times k must be at most {MAX_COMPARISONS}, got {experts} times {k}")
    for name, vector in zip(("bias", "expert_scales"), vectors, strict=False):
        if vector is not None and vector.shape != (experts,):
            raise GraphError(f"route: {name} must be [{experts}], got {list(vector.shape)}")
    _check_groups({**DEFAULTS, **attrs}, experts)
    shape = (*logits.shape[:-1], k)
    return [("int32", shape), ("float32", shape)]


def _check_groups(attrs: dict[str, Any], experts: int) -> None:
    if attrs["score"] not in SCORES:
        raise GraphError(f"route: score must be one of {', '.join(SCORES)}, got {attrs['score']!r}")
    groups, limit, best = attrs["groups"], attrs["group_limit"], attrs["group_best"]
    if groups < 1 or experts % groups:
        raise GraphError(f"route: groups must divide the {experts} experts, got {groups}")
    size = experts // groups
    if not 1 <= limit <= groups or not 1 <= best <= min(2, size):
        raise GraphError(
            f"route: group_limit must be 1 to {groups} and group_best 1 to {min(2, size)}, got {limit} and {best}"
        )
    if attrs["k"] > limit * size and not attrs["keeps_others"]:
        raise GraphError(f"route: k must be at most {limit * size}, the experts of {limit} groups, got {attrs['k']}")


def reference(inputs: Sequence[Any], attrs: dict[str, Any], act_dtype: str) -> list[np.ndarray]:
    """Computes in float64 and rounds once."""
    attrs = {**DEFAULTS, **attrs}
    logits, bias, expert_scales = (*inputs, None, None)[:3]
    logits = np.asarray(logits).astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):  # Where a logit is infinite, weights are NaN.
        mixes = attrs["score"] == "sparsemixer"
        index, weights = _mix_sparsely(logits, attrs) if mixes else _choose(logits, bias, attrs)
    weights = weights * attrs["scale"]
    if expert_scales is not None:
        weights = weights * np.asarray(expert_scales, np.float64)[index]
    return [index.astype(np.int32), weights.astype(np.float32)]


def _choose(logits: np.ndarray, bias: Any, attrs: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    scores = _softmax(logits) if attrs["score"] == "softmax" else 1.0 / (1.0 + np.exp(-logits))
    choice = (scores if attrs["by_scores"] else logits) + (0.0 if bias is None else np.asarray(bias, np.float64))
    index = _largest(_without_groups(choice, attrs), attrs["k"])
    weights = np.take_along_axis(scores, index, -1)
    if attrs["normalise"] and attrs["score"] == "softmax" and not attrs["epsilon"] and not attrs["least"]:
        return index, _softmax(np.take_along_axis(logits, index, -1))
    if attrs["normalise"]:
        weights = weights / (np.maximum(weights.sum(-1, keepdims=True), attrs["least"]) + attrs["epsilon"])
    return index, weights


def _softmax(x: np.ndarray) -> np.ndarray:
    terms = np.exp(x - x.max(-1, keepdims=True))
    shares: np.ndarray = terms / terms.sum(-1, keepdims=True)
    return shares


def _largest(x: np.ndarray, k: int) -> np.ndarray:
    """Returns the places of the k largest elements of each row, best first."""
    return np.argsort(-np.where(np.isnan(x), np.inf, x), axis=-1, kind="stable")[..., :k]


def _without_groups(choice: np.ndarray, attrs: dict[str, Any]) -> np.ndarray:
    """Returns what experts are chosen by, once the groups that do not count are left out."""
    if attrs["groups"] == 1:
        return choice
    grouped = choice.reshape(*choice.shape[:-1], attrs["groups"], -1)
    best = np.take_along_axis(grouped, _largest(grouped, attrs["group_best"]), -1).sum(-1)
    counts = np.zeros(best.shape, bool)
    np.put_along_axis(counts, _largest(best, attrs["group_limit"]), True, -1)
    left_out = 0.0 if attrs["keeps_others"] else -np.inf
    return np.where(counts[..., None], grouped, left_out).reshape(choice.shape)


def _mix_sparsely(logits: np.ndarray, attrs: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    left, indices, weights = logits.copy(), [], []
    for _ in range(attrs["k"]):
        index = _largest(left, 1)
        largest = np.take_along_axis(left, index, -1)
        far = (largest - logits) / np.maximum(np.abs(logits), largest) > 2 * attrs["jitter"]
        weights.append(1.0 / np.where(far, 0.0, np.exp(left - largest)).sum(-1, keepdims=True))
        indices.append(index)
        np.put_along_axis(left, index, -np.inf, -1)
    return np.concatenate(indices, -1), np.concatenate(weights, -1)


RESULTS = (rows("index"), rows("weights"))
OP = Op(
    "route",
    operands=(rows("logits"), shared("bias?"), shared("expert_scales?")),
    attrs={"k": "int", "normalise": "bool"},
    optional_attrs={
        "score": "str",
        "by_scores": "bool",
        "groups": "int",
        "group_limit": "int",
        "group_best": "int",
        "keeps_others": "bool",
        "scale": "float",
        "epsilon": "float",
        "least": "float",
        "jitter": "float",
    },
    results=RESULTS,
    infer=infer,
    reference=reference,
    per_token=True,
    sums=True,
)
INSTRUCTION = Instruction(
    "route",
    number=14,
    operands=OP.operands[:1],
    results=RESULTS,
    attrs=OP.attrs,
    words={"normalise": (False, True)},
    reference=reference,
    sums=True,
)
"""The softmax of the logits, without anything that a node may lack."""
