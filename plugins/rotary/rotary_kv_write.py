"""rotary_kv_write(qkv, table, slots, cache) -> (q, cache'):  q = rotary(q),  cache'[slots] = (rotary(k), v)

qkv: [T, (H + 2 Hkv) * D] = all q heads, k heads, v heads; table: [T, rotary_dim]; slots: [T] = block * block_size +
offset.  q: [T, H * D].  q, K and V are rounded to the activation type, which is the cache's.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorwright.builder.ir.graph import Shape, Value
from tensorwright.errors import GraphError
from tensorwright.plugins.rotary.op import rotate
from tensorwright.plugins.rounding import round_to

NAME = "rotary_kv_write"
ATTRS: dict[str, type] = {"layer": int, "heads": int, "kv_heads": int, "head_dim": int, "rotary_dim": int}


def infer(inputs: list[Value], attrs: dict[str, Any]) -> list[tuple[str, Shape]]:
    """q has qkv's type; cache' is a kv state."""
    qkv, table, slots, cache = inputs
    heads, kv_heads, head_dim = attrs["heads"], attrs["kv_heads"], attrs["head_dim"]
    if qkv.rank != 2 or qkv.shape[1] != (heads + 2 * kv_heads) * head_dim:
        raise GraphError(
            f"rotary_kv_write: qkv must be [tokens, {(heads + 2 * kv_heads) * head_dim}] for {heads} + 2 * {kv_heads} "
            f"heads of {head_dim}, got {list(qkv.shape)}"
        )
    if table.shape != (qkv.shape[0], attrs["rotary_dim"]) or slots.shape != qkv.shape[:1]:
        raise GraphError(
            f"rotary_kv_write: table must be [tokens, {attrs['rotary_dim']}] and slots [tokens], "
            f"got {list(table.shape)} and {list(slots.shape)}"
        )
    if cache.dtype != "kv":
        raise GraphError(f"rotary_kv_write: the cache must be a kv state, got {cache.dtype}")
    return [(qkv.dtype, (qkv.shape[0], heads * head_dim)), ("kv", ())]


def reference(inputs: list[Any], attrs: dict[str, Any], act_dtype: str) -> list[Any]:
    """The last operand is a tensorwright.plugins.paged_attention.cache.PagedCache; a changed copy is returned."""
    qkv, table, slots, cache = inputs
    heads, kv_heads = attrs["heads"], attrs["kv_heads"]
    parts = qkv.astype(np.float32).reshape(len(qkv), heads + 2 * kv_heads, attrs["head_dim"])
    q = rotate(parts[:, :heads], table)
    k = rotate(parts[:, heads : heads + kv_heads], table)
    written = cache.write(slots, k, parts[:, heads + kv_heads :])
    return [round_to(q, act_dtype).reshape(len(qkv), heads * attrs["head_dim"]), written]
