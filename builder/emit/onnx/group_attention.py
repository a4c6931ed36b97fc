"""Emits rotary_kv_write and paged_attention as ONNX Runtime's GroupQueryAttention, with the nodes before and after it.

B sequences of S tokens; H query heads, Hkv key-value heads, D head dim.  A row of qkv is [q heads, k heads, v heads].
Norms of q and k come between the split of the row and the rotation. GroupQueryAttention rotates where its kernels can
use the tables (D a multiple of 16, half the rotated dims a multiple of 8); else RotaryEmbedding rotates. The D of
GroupQueryAttention must be a multiple of 8: other heads are padded with zeros, which changes no score and no sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from tensorwright.builder.emit.onnx.model_file import CONTRIB
from tensorwright.builder.emit.onnx.portable_model import PortableModel
from tensorwright.errors import LoweringError
from tensorwright.ir.graph import Graph, Node, Value
from tensorwright.plugins.rotary import rotary_table

COLUMN_NORMS = ("rms_norm_columns", "layer_norm_columns")
_TABLE_ROWS = 4096


@dataclass(frozen=True)
class Heads:
    """The shape of one layer's attention."""

    layer: int
    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int

    @property
    def stored_dim(self) -> int:
        """Returns the head_dim of the cache."""
        return padded_dim(self.head_dim)

    @property
    def turns_inside(self) -> bool:
        """Returns whether GroupQueryAttention can rotate."""
        return self.rotary_dim > 0 and self.head_dim % 16 == 0 and self.rotary_dim % 16 == 0


def padded_dim(head_dim: int) -> int:
    """Rounds a head_dim up to a multiple of 8, which the kernel requires."""
    return -(-head_dim // 8) * 8


def refuse_gains(graph: Graph) -> None:
    """Raises LoweringError if q is multiplied between its rotation and the scores, for GroupQueryAttention does both.

    Raises it for latent attention too, whose V is a part of K, and for scores that fall with distance.
    """
    for node in graph.find("paged_attention"):
        write = node.operand(0).producer
        if node.optional(6) is not None:
            raise LoweringError(
                f"attention in {node.scope} has slopes (alibi), which have no portable ONNX form; build with target cpu"
            )
        if write.op == "latent_kv_write":
            raise LoweringError(
                f"latent attention in {write.scope} has no portable ONNX form, for its V is a part of K; build with "
                "target cpu"
            )
        if write.op != "rotary_kv_write":
            raise LoweringError(
                f"{write.op} in {write.scope}: what q is multiplied by behind its rotation has no portable "
                "ONNX form; build with target cpu"
            )


def emit_attention(emitter: PortableModel, write: Node, node: Node) -> str:
    """Returns the output [tokens, H * D] of the layer that `write` and `node` (paged_attention) form."""
    model, scope = emitter.model, node.scope
    shape = Heads(*(write.attrs[key] for key in ("layer", "heads", "kv_heads", "head_dim", "rotary_dim")))
    table = write.optional(1)
    norms, row = column_norms(write.operand(0))
    tables = ["", ""] if table is None else rotary_tables(emitter, table, shape.rotary_dim)
    grid = emitter.to_grid(emitter.name(row), scope)
    packed = not norms and shape.stored_dim == shape.head_dim and (table is None or shape.turns_inside)
    q, k, v = [grid, "", ""] if packed else _parts(emitter, shape, norms, grid, scope)
    if table is not None and not shape.turns_inside:
        q, k = (
            model.node(
                "RotaryEmbedding", [x, emitter.position_ids(), *tables], scope=scope, domain=CONTRIB,
                num_heads=count, rotary_embedding_dim=shape.rotary_dim,
            )[0]
            for x, count in ((q, shape.heads), (k, shape.kv_heads))
        )  # fmt: skip
    if shape.stored_dim != shape.head_dim:
        counts = (shape.heads, shape.kv_heads, shape.kv_heads)
        q, k, v = (_pad(emitter, x, n, shape, scope) for x, n in zip((q, k, v), counts, strict=True))
    out = _group_attention(emitter, shape, node, [q, k, v], tables if shape.turns_inside else ["", ""])
    if shape.stored_dim != shape.head_dim:
        out = _cut(emitter, out, shape, scope)
    return emitter.to_rows(out, shape.heads * shape.head_dim, scope)


def _group_attention(emitter: PortableModel, shape: Heads, node: Node, qkv: list[str], tables: list[str]) -> str:
    attrs, layer = node.attrs, shape.layer
    sinks = node.optional(5)
    past = [f"past_k.{layer}", f"past_v.{layer}"]
    inputs = [*qkv, *past, "seqlens_k", "total_sequence_length", *tables, "", ""]
    inputs.append("" if sinks is None else emitter.weights.plain(sinks))
    while inputs[-1] == "":
        inputs.pop()
    return emitter.model.node(
        "GroupQueryAttention", inputs, scope=node.scope, domain=CONTRIB,
        outputs=["", f"present_k.{layer}", f"present_v.{layer}"],
        num_heads=shape.heads, kv_num_heads=shape.kv_heads, scale=attrs["scale"], do_rotary=int(bool(tables[0])),
        local_window_size=attrs["window"] or -1, softcap=attrs["softcap"] or None,
    )[0]  # fmt: skip


def column_norms(qkv: Value) -> tuple[list[Node], Value]:
    """Returns the norms of columns that a row passed, first ones first, and the row before them."""
    found: list[Node] = []
    while qkv.node is not None and qkv.node.op in COLUMN_NORMS:
        found.insert(0, qkv.node)
        qkv = qkv.node.operand(0)
    return found, qkv


def _parts(emitter: PortableModel, shape: Heads, norms: list[Node], grid: str, scope: str) -> list[str]:
    """Returns q, k and v [B, S, heads * D], normalised."""
    widths = [n * shape.head_dim for n in (shape.heads, shape.kv_heads, shape.kv_heads)]
    sizes = emitter.shape_constant(widths)
    parts = emitter.model.node("Split", [grid, sizes], scope=scope, outputs=["", "", ""], axis=-1)
    starts = {0: 0, widths[0]: 1}
    for norm in norms:
        start = norm.attrs["start"]
        width = int(norm.operand(1).shape[-1])
        if start not in starts or norm.attrs["heads"] * width != widths[starts[start]]:
            raise LoweringError(
                f"{norm.op} in {norm.scope}: a norm of columns must be of all of q or all of k in the portable form, "
                f"and starts at column {start} with {norm.attrs['heads']} runs of {width}; build with target cpu"
            )
        at = starts[start]
        parts[at] = _norm_runs(emitter, norm, parts[at], width, widths[at])
    return parts


def _norm_runs(emitter: PortableModel, norm: Node, x: str, width: int, columns: int) -> str:
    """Normalises each run of `width` columns of x [B, S, columns] alone."""
    single = width == columns
    runs = x if single else emitter.reshape(x, [0, 0, -1, width], norm.scope)
    y = emitter.normalise(norm, runs)
    return y if single else emitter.reshape(y, [0, 0, columns], norm.scope)


def _pad(emitter: PortableModel, x: str, heads: int, shape: Heads, scope: str) -> str:
    runs = emitter.reshape(x, [0, 0, heads, shape.head_dim], scope)
    ends = emitter.shape_constant([0] * 7 + [shape.stored_dim - shape.head_dim])
    (wide,) = emitter.model.node("Pad", [runs, ends], scope=scope)
    return emitter.reshape(wide, [0, 0, heads * shape.stored_dim], scope)


def _cut(emitter: PortableModel, x: str, shape: Heads, scope: str) -> str:
    runs = emitter.reshape(x, [0, 0, shape.heads, shape.stored_dim], scope)
    bounds = [emitter.shape_constant([i]) for i in (0, shape.head_dim, -1)]
    return emitter.model.node("Slice", [runs, *bounds], scope=scope)[0]


def rotary_tables(emitter: PortableModel, table: Value, rotary_dim: int) -> list[str]:
    """Returns the names of cos and sin by position, [max_seq_len, rotary_dim / 2], of the node that makes `table`."""
    return emitter.once(("table", table), lambda: _make_tables(emitter, table, rotary_dim))


def _make_tables(emitter: PortableModel, table: Value, rotary_dim: int) -> list[str]:
    node = table.producer
    frequencies = node.operand(1).constant if node.op == "rotary_table" else None
    if frequencies is None:
        raise LoweringError(f"%{table.name}: a rotary table must have constant frequencies; build with target cpu")
    half, length = rotary_dim // 2, emitter.graph.facts.max_seq_len
    chunks = partial(_table_chunks, np.asarray(frequencies), node.attrs["scale"], half, length, emitter.dtype)
    prefix = f"{node.scope}." if node.scope else ""
    names = [(f"{prefix}{kind}_table", emitter.dtype, (length, half)) for kind in ("cos", "sin")]
    return emitter.model.stream(names, chunks)


def _table_chunks(
    frequencies: np.ndarray, scale: float, half: int, length: int, dtype: str
) -> Iterator[tuple[int, np.ndarray]]:
    for which in (0, 1):
        for start in range(0, length, _TABLE_ROWS):
            positions = np.arange(start, min(length, start + _TABLE_ROWS))
            (rows,) = rotary_table.reference([positions, frequencies], {"scale": scale}, "float32")
            yield which, rows[:, which * half : (which + 1) * half].astype(dtype)
