"""latent_kv_write(q_latent, q, kv, table?, slots, cache) -> (q', cache'):  rows of q and of the latent cache

T tokens, H heads, L latent columns, P columns that rotate, S columns of a head of q, of which the last P are read.

    q'_h = [q_latent_h | rotary(q_h[S - P:])],  cache'[slots] = [kv[:L] | rotary(kv[L:])]

q_latent: [T, H * L], q: [T, H * S], kv: [T, L + P], table: [T, P]; slots: [T] = block * block_size + offset.
q': [T, H * (L + P)] of the activation type. The cache holds one row of K for all heads, whose first L columns are V
too. Without a table no column rotates.
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
    """Returns q_latent's type for q', and a kv state for cache'."""
    q_latent, q, kv, table, slots, cache = inputs
    heads, head_dim, latent = attrs["heads"], attrs["head_dim"], attrs["v_dim"]
    rotated = head_dim - latent
    if q_latent.rank != 2 or q_latent.shape[1] != heads * latent or kv.shape != (q_latent.shape[0], head_dim):
        raise GraphError(
            f"latent_kv_write: q_latent and kv must be [tokens, {heads * latent}] and [tokens, {head_dim}], "
            f"got {list(q_latent.shape)} and {list(kv.shape)}"
        )
    if q.rank != 2 or not isinstance(q.shape[1], int) or q.shape[1] % heads or q.shape[1] // heads < rotated:
        raise GraphError(f"latent_kv_write: {heads} heads of q {list(q.shape)} must have {rotated} columns or more")
    if table is not None and table.shape != (q_latent.shape[0], rotated):
        raise GraphError(f"latent_kv_write: the table must be [tokens, {rotated}], got {list(table.shape)}")
    if slots.shape != q_latent.shape[:1] or cache.dtype != "kv":
        raise GraphError("latent_kv_write: slots must be [tokens], and the cache a kv state")
    return [(q_latent.dtype, (q_latent.shape[0], heads * head_dim)), ("kv", ())]


def reference(inputs: list[Any], attrs: dict[str, Any], act_dtype: str) -> list[Any]:
    """Rotates and writes. The last operand is a paged_attention.cache.PagedCache; a changed copy is returned."""
    q_latent, q, kv, table, slots, cache = inputs
    heads, latent = attrs["heads"], attrs["v_dim"]
    tokens, rotated = len(kv), kv.shape[1] - latent
    table = np.zeros((tokens, 0), np.float32) if table is None else table
    size = q.shape[1] // heads
    turned = rotate(q.reshape(tokens, heads, size)[:, :, size - rotated :], table)
    rows = np.concatenate([q_latent.reshape(tokens, heads, latent).astype(np.float32), turned], axis=-1)
    k = np.concatenate([kv[:, None, :latent].astype(np.float32), rotate(kv[:, None, latent:], table)], axis=-1)
    written = cache.write(slots, k, k[:, :, :0])
    return [round_to(rows, act_dtype).reshape(tokens, heads * attrs["head_dim"]), written]


OP = Op(
    "latent_kv_write",
    operands=(rows("q_latent"), rows("q"), rows("kv"), rows("table?"), metadata("slots"), cache("cache")),
    results=(rows("y"), cache("written")),
    attrs={"layer": "int", "heads": "int", "head_dim": "int", "v_dim": "int"},
    stages=("cached",),
    infer=infer,
    reference=reference,
    sequence_aware=True,
)
INSTRUCTION = Instruction(
    "latent_kv_write",
    number=17,
    operands=OP.operands,
    results=OP.results,
    attrs={"kv_layer": "int", "heads": "int"},
    reference=reference,
    sequence_aware=True,
)
