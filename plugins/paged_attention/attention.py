"""attention(q, k, v, sinks?):  softmax(softcap(scale * q k^T), what each query may see) v,  one sequence, causal

q: [1, S, H, D], k: [1, S, Hkv, D], v: [1, S, Hkv, Dv], mostly Dv = D; query head h reads KV head h // (H / Hkv). With
mask "causal" a query sees every position up to its own; with "window" only the last `window` of those.  softcap c > 0:
c * tanh(score / c).
sinks: [H] float32, one score per head that joins the softmax and has no value.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorwright.errors import GraphError
from tensorwright.ir.graph import Shape, Value
from tensorwright.ir.records import Op, rows, shared
from tensorwright.plugins.rounding import round_to


def infer(inputs: list[Value], attrs: dict[str, Any]) -> list[tuple[str, Shape]]:
    """Returns [1, S, H, Dv] of q's type."""
    q, k, v, sinks = with_sinks(inputs, 3)
    if q.rank != 4 or k.shape[:3] != v.shape[:3] or q.shape[:2] != k.shape[:2] or q.shape[3] != k.shape[3]:
        raise GraphError(
            f"attention: q must be [1, S, H, D], k [1, S, Hkv, D] and v [1, S, Hkv, Dv], "
            f"got {list(q.shape)}, {list(k.shape)} and {list(v.shape)}"
        )
    heads, kv_heads = q.shape[2], k.shape[2]
    if not isinstance(heads, int) or not isinstance(kv_heads, int) or heads % kv_heads:
        raise GraphError(f"attention: {heads} query heads must be a multiple of {kv_heads} KV heads")
    if attrs["mask"] not in ("causal", "window") or (attrs["mask"] == "window") != (attrs["window"] > 0):
        raise GraphError(
            f"attention: mask must be causal without or window with a window, "
            f"got {attrs['mask']!r} and window {attrs['window']}"
        )
    check_sinks("attention", sinks, heads)
    return [(q.dtype, (*q.shape[:3], v.shape[3]))]


def with_sinks(inputs: list[Any], count: int) -> list[Any]:
    """Returns `count` operands and the sinks, None if the op has no sinks."""
    return [*inputs[:count], inputs[count] if len(inputs) > count else None]


def check_sinks(op: str, sinks: Value | None, heads: int) -> None:
    if sinks is not None and sinks.shape != (heads,):
        raise GraphError(f"{op}: sinks must be [{heads}], one for each query head, got {list(sinks.shape)}")


def attend(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    first_position: int,
    scale: float,
    window: int,
    softcap: float,
    sinks: np.ndarray | None = None,
) -> np.ndarray:
    """Attends with q [Q, H, D], at positions first_position + i, to k [L, Hkv, D], v [L, Hkv, Dv] -> [Q, H, Dv].

    All is computed in float64.
    """
    group = q.shape[1] // k.shape[1]
    # [Hkv, group, Q, D] times [Hkv, 1, D, L]
    q64 = q.astype(np.float64).reshape(len(q), k.shape[1], group, -1).transpose(1, 2, 0, 3)
    score = scale * (q64 @ k.astype(np.float64).transpose(1, 2, 0)[:, None])
    if softcap:
        score = softcap * np.tanh(score / softcap)
    query, key = first_position + np.arange(len(q))[:, None], np.arange(len(k))
    seen = (key <= query) & ((key > query - window) if window else True)
    score = np.where(seen, score, -np.inf)
    top = score.max(axis=-1, keepdims=True)
    beside = np.full((k.shape[1], group, 1, 1), -np.inf)
    if sinks is not None:
        beside = sinks.astype(np.float64).reshape(beside.shape)
        top = np.maximum(top, beside)
    weight = np.exp(score - top)
    weight /= weight.sum(axis=-1, keepdims=True) + np.exp(beside - top)
    y = weight @ v.astype(np.float64).transpose(1, 0, 2)[:, None]
    return y.transpose(2, 0, 1, 3).reshape(*q.shape[:2], v.shape[2])


def reference(inputs: list[np.ndarray], attrs: dict[str, Any], act_dtype: str) -> list[np.ndarray]:
    q, k, v, sinks = with_sinks(inputs, 3)
    y = [attend(q[i], k[i], v[i], 0, attrs["scale"], attrs["window"], attrs["softcap"], sinks) for i in range(len(q))]
    return [round_to(np.stack(y).astype(np.float32), act_dtype)]


OP = Op(
    "attention",
    operands=(rows("q"), rows("k"), rows("v"), shared("sinks?")),
    attrs={"scale": "float", "mask": "str", "window": "int", "softcap": "float"},
    stages=("fused",),
    infer=infer,
    reference=reference,
    sequence_aware=True,
    sums=True,
)
