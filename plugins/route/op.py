"""route(logits){k, normalise}:  the k experts of each row, best first, and the weight of each

p = softmax(logits).  index: the places of the k largest logits; of equal ones the lowest comes first, and a NaN counts
as the largest.  weights: p at these places, divided by their sum if `normalise`: the softmax of the k logits alone.

logits: [..., E].  index: int32 [..., k], weights: float32 [..., k].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorwright.errors import GraphError
from tensorwright.ir.graph import Shape, Value
from tensorwright.ir.records import Instruction, Op, rows

MAX_COMPARISONS = 2**20
"""Equal to TW_MAX_ROUTE_COMPARISONS of layout.h: the most experts times k, which are looked at for each row."""


def infer(inputs: Sequence[Value | None], attrs: dict[str, Any]) -> list[tuple[str, Shape]]:
    """Returns the types of index and weights. Raises GraphError if there are fewer experts than k, or far too many."""
    (logits,) = inputs
    if logits is None:
        raise GraphError("route: logits must be present")
    experts, k = logits.shape[-1], attrs["k"]
    if not isinstance(experts, int) or not 1 <= k <= experts:
        raise GraphError(f"route: k must be 1 to the number of experts, {experts}, got {k}")
    if experts * k > MAX_COMPARISONS:
        raise GraphError(f"route: experts times k must be at most {MAX_COMPARISONS}, got {experts} times {k}")
    shape = (*logits.shape[:-1], k)
    return [("int32", shape), ("float32", shape)]


def reference(inputs: Sequence[Any], attrs: dict[str, Any], act_dtype: str) -> list[np.ndarray]:
    """Computes in float64 and rounds once."""
    logits = np.asarray(inputs[0]).astype(np.float64)
    order = np.argsort(-np.where(np.isnan(logits), np.inf, logits), axis=-1, kind="stable")
    index = order[..., : attrs["k"]]
    with np.errstate(invalid="ignore"):  # Where a logit is infinite, weights are NaN.
        terms = np.exp(logits - logits.max(-1, keepdims=True))
        chosen = np.take_along_axis(terms, index, -1)
        weights = chosen / (chosen if attrs["normalise"] else terms).sum(-1, keepdims=True)
    return [index.astype(np.int32), weights.astype(np.float32)]


RESULTS = (rows("index"), rows("weights"))
OP = Op(
    "route",
    operands=(rows("logits"),),
    attrs={"k": "int", "normalise": "bool"},
    results=RESULTS,
    infer=infer,
    reference=reference,
    per_token=True,
    sums=True,
)
INSTRUCTION = Instruction(
    "route",
    number=14,
    operands=OP.operands,
    results=RESULTS,
    attrs=OP.attrs,
    words={"normalise": (False, True)},
    reference=reference,
    sums=True,
)
