"""rotary_kv_write(qkv, table?, slots, cache) -> (q, cache'):  q = rotary(q),  cache'[slots] = (rotary(k), v)

qkv: [T, (H + 2 Hkv) * D] = all q heads, k heads, v heads; table: [T, rotary_dim]; slots: [T] = block * block_size +
offset.  q: [T, H * D].  q is rounded to the activation type, K and V to the cache's: the same type, or int8 or
int4 with scales for each head (plugins/paged_attention/quantize.py). Without a table rotary_dim is 0, and no head
rotates.
Of 0 heads of K and V nothing is written: such a layer reads what another one wrote.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorwright.errors import GraphError
from tensorwright.ir.graph import Shape
from tensorwright.ir.records import Instruction, Op, cache, metadata, rows
from tensorwright.plugins.rotary.op import rotate
from tensorwright.plugins.rounding import round_to


def infer(inputs: Sequence[Any], attrs: dict[str, Any]) -> list[tuple[str, Shape]]:
    """Returns qkv's type for q, and a kv state for cache'."""
    qkv, table, slots, cache = inputs
    heads, kv_heads, head_dim = attrs["heads"], attrs["kv_heads"], attrs["head_dim"]
    if qkv.rank != 2 or qkv.shape[1] != (heads + 2 * kv_heads) * head_dim:
        raise GraphError(
            f"rotary_kv_write: qkv must be [tokens, {(heads + 2 * kv_heads) * head_dim}] for {heads} + 2 * {kv_heads} "
            f"heads of {head_dim}, got {list(qkv.shape)}"
        )
    wanted = (qkv.shape[0], attrs["rotary_dim"]) if attrs["rotary_dim"] else None
    got = None if table is None else table.shape
    if got != wanted or slots.shape != qkv.shape[:1]:
        raise GraphError(
            f"rotary_kv_write: table must be {'[tokens, ' + str(wanted[1]) + ']' if wanted else 'absent'} and slots "
            f"[tokens], got {'no table' if got is None else list(got)} and {list(slots.shape)}"
        )
    if cache.dtype != "kv":
        raise GraphError(f"rotary_kv_write: the cache must be a kv state, got {cache.dtype}")
    return [(qkv.dtype, (qkv.shape[0], heads * head_dim)), ("kv", ())]


def reference(inputs: list[Any], attrs: dict[str, Any], act_dtype: str) -> list[Any]:
    """Rotates and writes. The last operand is a paged_attention.cache.PagedCache; a changed copy is returned."""
    qkv, table, slots, cache = inputs
    heads, head_dim = attrs["heads"], attrs["head_dim"]
    kv_heads = (qkv.shape[1] // head_dim - heads) // 2  # An instruction has no other record of it.
    parts = qkv.astype(np.float32).reshape(len(qkv), heads + 2 * kv_heads, head_dim)
    table = np.zeros((len(qkv), 0), np.float32) if table is None else table
    q = rotate(parts[:, :heads], table)
    k = rotate(parts[:, heads : heads + kv_heads], table)
    written = cache.write(slots, k, parts[:, heads + kv_heads :]) if kv_heads else cache
    return [round_to(q, act_dtype).reshape(len(qkv), heads * head_dim), written]


OP = Op(
    "rotary_kv_write",
    operands=(rows("qkv"), rows("table?"), metadata("slots"), cache("cache")),
    results=(rows("q"), cache("written")),
    attrs={"layer": "int", "heads": "int", "kv_heads": "int", "head_dim": "int", "rotary_dim": "int"},
    stages=("cached",),
    infer=infer,
    reference=reference,
    sequence_aware=True,
)
INSTRUCTION = Instruction(
    "rotary_kv_write",
    number=5,
    operands=OP.operands,
    results=OP.results,
    attrs={"kv_layer": "int", "heads": "int", "rotary_dim": "int"},
    reference=reference,
    sequence_aware=True,
)
