"""latent_attention(q, kv, norm, up_k, up_v, table?):  causal attention with K and V of one latent row per position

S tokens, H heads, N + P columns of a head of q, L latent columns, P columns that rotate, O columns of a head of V.

    c = rms_norm(kv[:, :L], norm),  r = rotary(kv[:, L:])
    k_h = [c up_k_h | r],  v_h = c up_v_h^T                         up_k: [H, L, N], up_v: [H, O, L]
    y_h = softmax(scale * [q_h[:N] | rotary(q_h[N:])] k_h^T) v_h

q: [1, S, H * (N + P)], kv: [1, S, L + P], norm: [L], table: [1, S, P].  y: [1, S, H * O].  The weights of a head do not
depend on the position, so that they may be taken out of the sums over positions, which are then over latents alone:

    score = [q_h[:N] up_k_h^T | rotary(q_h[N:])] [c | r]^T,  y_h = (softmax(scale * score) c) up_v_h^T

This form is the definition. A cache need only hold [c | r], one row for all heads (DeepSeek-V2, section 2.1.2).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorwright.errors import GraphError
from tensorwright.ir.graph import Shape, Value
from tensorwright.ir.records import Op, rows, shared
from tensorwright.plugins.head_products.op import heads_of
from tensorwright.plugins.paged_attention.attention import attend, how_of
from tensorwright.plugins.rms_norm.op import normalise
from tensorwright.plugins.rotary.op import rotate
from tensorwright.plugins.rounding import round_to


def infer(inputs: list[Value | None], attrs: dict[str, Any]) -> list[tuple[str, Shape]]:
    """Returns [1, S, H * O] of q's type. Raises GraphError for operands that do not fit."""
    q, kv, norm, up_k, up_v, table = (*inputs, None)[:6]
    if q is None or kv is None or norm is None or up_k is None or up_v is None:
        raise GraphError("latent_attention: only the table may be absent")
    if up_k.rank != 3 or up_v.rank != 3:
        raise GraphError("latent_attention: up_k and up_v must be [H, L, N] and [H, O, L]")
    (heads, latent, inner), (_, out, _) = up_k.shape, up_v.shape
    fits = all(isinstance(x.shape[-1], int) for x in (q, kv, norm)) and isinstance(latent, int)
    if not fits or up_v.shape[::2] != (heads, latent) or norm.shape != (latent,):
        raise GraphError(f"latent_attention: up_v {list(up_v.shape)} and norm {list(norm.shape)} do not fit up_k")
    rotated = int(kv.shape[-1]) - int(latent)
    if q.shape != (*kv.shape[:-1], int(heads) * (int(inner) + rotated)) or rotated < 0:
        raise GraphError(f"latent_attention: q {list(q.shape)} does not fit kv {list(kv.shape)} and {heads} heads")
    if table is not None and table.shape != (*kv.shape[:-1], rotated):
        raise GraphError(f"latent_attention: the table must have {rotated} columns, got {list(table.shape)}")
    return [(q.dtype, (*q.shape[:-1], int(heads) * int(out)))]


def reference(inputs: list[Any], attrs: dict[str, Any], act_dtype: str) -> list[np.ndarray]:
    q, kv, norm, up_k, up_v, table = (*inputs, None)[:6]
    heads, latent, inner = up_k.shape
    y = []
    for i in range(len(q)):
        turn = np.zeros((len(kv[i]), 0), np.float32) if table is None else table[i]
        c = normalise(kv[i][:, :latent], norm, attrs["eps"], attrs["weight_offset"])
        k = np.concatenate([c, rotate(kv[i][:, None, latent:], turn)[:, 0]], axis=-1)[:, None]
        parts = heads_of(q[i], heads, q.shape[-1] // heads)
        absorbed = np.einsum("thn,hln->thl", parts[:, :, :inner].astype(np.float64), up_k.astype(np.float64))
        read = np.concatenate([absorbed, rotate(parts[:, :, inner:], turn)], axis=-1)
        mixed = attend(read, k, k[:, :, :latent], 0, **how_of(attrs))
        y.append(np.einsum("thl,hol->tho", mixed, up_v.astype(np.float64)).reshape(len(mixed), -1))
    return [round_to(np.stack(y).astype(np.float32), act_dtype)]


OP = Op(
    "latent_attention",
    operands=(rows("q"), rows("kv"), shared("norm"), shared("up_k"), shared("up_v"), rows("table?")),
    attrs={"eps": "float", "weight_offset": "float", "scale": "float", "window": "int", "softcap": "float"},
    optional_attrs={"chunked": "bool"},
    stages=("fused",),
    infer=infer,
    reference=reference,
    sequence_aware=True,
    sums=True,
)
