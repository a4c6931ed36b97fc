"""attention(q, k, v, sinks?, slopes?):  softmax(softcap(scale * q k^T) + bias) v of what each query sees,  causal

q: [1, S, H, D], k: [1, S, Hkv, D], v: [1, S, Hkv, Dv], mostly Dv = D; query head h reads KV head h // (H / Hkv). With
mask "causal" a query sees every position up to its own; with "window" only the last `window` of those; with "chunk"
only those of its own chunk of `window` positions, which begins at a multiple of `window`.  softcap c > 0:
c * tanh(score / c).
sinks: [H] float32, one score per head that joins the softmax and has no value.
slopes: [H] float32; bias = slope * (position of the key - position of the query), nothing without slopes (ALiBi, Press
et al. 2022).
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
    q, k, v, sinks, slopes = with_vectors(inputs, 3)
    if q.rank != 4 or k.shape[:3] != v.shape[:3] or q.shape[:2] != k.shape[:2] or q.shape[3] != k.shape[3]:
        raise GraphError(
            f"attention: q must be [1, S, H, D], k [1, S, Hkv, D] and v [1, S, Hkv, Dv], "
            f"got {list(q.shape)}, {list(k.shape)} and {list(v.shape)}"
        )
    heads, kv_heads = q.shape[2], k.shape[2]
    if not isinstance(heads, int) or not isinstance(kv_heads, int) or heads % kv_heads:
        raise GraphError(f"attention: {heads} query heads must be a multiple of {kv_heads} KV heads")
    if attrs["mask"] not in ("causal", "window", "chunk") or (attrs["mask"] != "causal") != (attrs["window"] > 0):
        raise GraphError(
            f"attention: mask must be causal without a window, or window or chunk with one, "
            f"got {attrs['mask']!r} and window {attrs['window']}"
        )
    check_vectors("attention", sinks, slopes, heads)
    return [(q.dtype, (*q.shape[:3], v.shape[3]))]


def with_vectors(inputs: list[Any], count: int) -> list[Any]:
    """Returns `count` operands, then the sinks and the slopes, None for what the op lacks."""
    return [*inputs, None, None][: count + 2]


def check_vectors(op: str, sinks: Value | None, slopes: Value | None, heads: int) -> None:
    for name, vector in (("sinks", sinks), ("slopes", slopes)):
        if vector is not None and vector.shape != (heads,):
            raise GraphError(f"{op}: {name} must be [{heads}], one for each query head, got {list(vector.shape)}")


def how_of(attrs: dict[str, Any]) -> dict[str, Any]:
    """Returns what the attributes of any attention say of scores and masks, as attributes of `paged_attention`."""
    chunked = attrs.get("mask") == "chunk" or attrs.get("chunked", False)
    sinks = attrs.get("sink_tokens", 0)
    return {
        **{key: attrs[key] for key in ("scale", "window", "softcap")},
        **({"chunked": True} if chunked else {}),
        **({"sink_tokens": sinks} if sinks else {}),
    }


def first_seen(position: np.ndarray, window: int, chunked: bool) -> np.ndarray:
    """Returns the first position that each of these positions sees. A window of 0 holds all positions."""
    if window == 0:
        return np.zeros_like(position)
    return position - position % window if chunked else np.maximum(0, position - window + 1)


def attend(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    first_position: int,
    scale: float,
    window: int,
    softcap: float,
    sinks: np.ndarray | None = None,
    slopes: np.ndarray | None = None,
    chunked: bool = False,
    sink_tokens: int = 0,
    hidden: np.ndarray | None = None,
    shown: np.ndarray | None = None,
) -> np.ndarray:
    """Attends with q [Q, H, D], at positions first_position + i, to k [L, Hkv, D], v [L, Hkv, Dv] -> [Q, H, Dv].

    sink_tokens: how many first positions every query sees besides its window. hidden: bool [L], positions that no query
    sees. shown: bool [Hkv, Q, L]; where it is false, the query does not see the key. None of both hides nothing. All is
    computed in float64.
    """
    group = q.shape[1] // k.shape[1]
    # [Hkv, group, Q, D] times [Hkv, 1, D, L]
    q64 = q.astype(np.float64).reshape(len(q), k.shape[1], group, -1).transpose(1, 2, 0, 3)
    score = scale * (q64 @ k.astype(np.float64).transpose(1, 2, 0)[:, None])
    if softcap:
        score = softcap * np.tanh(score / softcap)
    query, key = first_position + np.arange(len(q))[:, None], np.arange(len(k))
    if slopes is not None:
        score = score + slopes.astype(np.float64).reshape(k.shape[1], group, 1, 1) * (key - query)
    seen = (key <= query) & ((key >= first_seen(query, window, chunked)) | (key < sink_tokens))
    if hidden is not None:
        seen = seen & ~hidden
    score = np.where(seen if shown is None else seen & shown[:, None], score, -np.inf)
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
    q, k, v, *vectors = with_vectors(inputs, 3)
    sinks, slopes = vectors
    y = [attend(q[i], k[i], v[i], 0, **how_of(attrs), sinks=sinks, slopes=slopes) for i in range(len(q))]
    return [round_to(np.stack(y).astype(np.float32), act_dtype)]


OP = Op(
    "attention",
    operands=(rows("q"), rows("k"), rows("v"), shared("sinks?"), shared("slopes?")),
    attrs={"scale": "float", "mask": "str", "window": "int", "softcap": "float"},
    stages=("fused",),
    infer=infer,
    reference=reference,
    sequence_aware=True,
    sums=True,
)
