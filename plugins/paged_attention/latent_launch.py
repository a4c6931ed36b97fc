"""Decides what a call of attention over latent rows starts on a GPU: one kernel, and the sum of decode's splits.

    inputs   q [T, H D], k_pages [P, 1, block_size, D], seq_starts [S + 1], context_lens [S], block_tables [S, B] int32
    outputs  out [T, H L]; L, the attribute v_dim, is how many of D columns are V too. All but int32 are of one type.
attrs: heads, head_dim, v_dim, scale, window, softcap, and optional chunked and block_size.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tensorwright.engine_format.dtypes import ITEM_BYTES
from tensorwright.plugins.gpu.launch import (
    POINTERS,
    KernelSpec,
    Launch,
    Tensor,
    ceil_div,
    grid_of,
    make_launch,
    next_power_of_2,
    require_dense,
    require_shape,
)
from tensorwright.plugins.paged_attention.launch import AT_ONCE, ROOM, WORKSPACE_DTYPE
from tensorwright.plugins.paged_attention.tiles import BLOCK_SIZE, BLOCK_SIZES, SPLIT, Tile, require

LATENTS = range(16, 513)
MAX_REST = 128
"""The most columns of K behind those that are V too."""
MOST_PARTIALS = 512
"""About how many rows of partial results one sequence may have, over all heads and splits: 1 MB at 512 columns."""


@dataclass(frozen=True)
class Latent:
    """The checked attributes and types of one node."""

    heads: int
    head_dim: int
    v_dim: int
    scale: float
    window: int
    softcap: float
    chunked: bool
    block_size: int
    dtype: str

    @staticmethod
    def of(attrs: Mapping[str, Any], dtype: str) -> Latent:
        """Reads the attributes of a node. `dtype` is q's. Raises KernelError."""
        self = Latent(
            heads=int(attrs["heads"]),
            head_dim=int(attrs["head_dim"]),
            v_dim=int(attrs["v_dim"]),
            scale=float(attrs["scale"]),
            window=int(attrs["window"]),
            softcap=float(attrs["softcap"]),
            chunked=bool(attrs.get("chunked", False)),
            block_size=int(attrs.get("block_size", BLOCK_SIZE)),
            dtype=dtype,
        )
        self._check()
        return self

    def _check(self) -> None:
        require(self.dtype in ("float32", "float16", "bfloat16"), "q must be float32, float16 or bfloat16", self.dtype)
        require(self.v_dim in LATENTS, "a latent row must have 16 to 512 columns", self.v_dim)
        rest = self.head_dim - self.v_dim
        require(0 <= rest <= MAX_REST, f"a latent row must have 0 to {MAX_REST} columns beside those of V", rest)
        require(self.heads > 0, "there must be heads", self.heads)
        require(self.block_size in BLOCK_SIZES, f"block_size must be one of {BLOCK_SIZES}", self.block_size)
        require(self.scale > 0, "scale must be positive", self.scale)
        require(self.window >= 0 and self.softcap >= 0, "window and softcap must not be negative", self)
        require(self.window > 0 or not self.chunked, "chunks must have a length", self.window)

    @property
    def most_splits(self) -> int:
        """The most splits of a sequence: a power of two, and two at least, of which a window needs one."""
        return max(next_power_of_2(MOST_PARTIALS // self.heads + 1) // 2, 2)

    def splits(self, max_blocks: int) -> int:
        """Returns the most splits of a sequence of this many blocks, as plan_splits of gpu_decode.py makes them."""
        bound = ceil_div(max_blocks * self.block_size, SPLIT)
        if self.window:
            bound = min(bound, ceil_div(self.window, SPLIT) + 1)
        return max(min(bound, self.most_splits), 1)


def tile(op: Latent, decodes: bool, sm: int) -> Tile:
    """Returns rows, positions, heads, warps and stages. A row of q and of acc takes 512 columns in registers, so rows
    are few: 16 where each sequence has one token, else 32. float32 has no tensor cores, and SM 75 has not the shared
    memory for two stages."""
    if op.dtype == "float32":
        return Tile(16, 16, min(op.heads, 16), 8, 1)
    rows = 16 if decodes else 32
    return Tile(rows, 32, min(op.heads, rows), 4 if decodes else 8, 1 if sm == 75 else 2)


def kernels(attrs: Mapping[str, Any], dtypes: Mapping[str, str], sm: int) -> tuple[KernelSpec, ...]:
    """Returns the kernel for steps of decodes and for others, and combine. Only q's type of `dtypes` is needed."""
    op = Latent.of(attrs, dtypes["q"])
    return tuple(dict.fromkeys((_spec(op, True, sm), _spec(op, False, sm), _combine_spec(op))))


def launches(
    attrs: Mapping[str, Any],
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    workspace: Tensor | None,
    sm: int,
) -> list[Launch]:
    """Makes no launch for no tokens, and none of combine where no sequence of one token has several splits."""
    op = Latent.of(attrs, inputs["q"].dtype)
    out = outputs["out"]
    _check_operands(op, inputs, out)
    tokens, (seqs, max_blocks) = inputs["q"].shape[0], inputs["block_tables"].shape
    if tokens == 0 or seqs == 0:
        return []
    splits = op.splits(max_blocks) if tokens == 1 or seqs > 1 else 1
    needed = _partials(op, seqs, splits)
    if needed:
        got = 0 if workspace is None or workspace.dtype != WORKSPACE_DTYPE else workspace.shape[0]
        require(got >= needed, f"the workspace must be float32 [{needed}] or more", got)
    # Without several splits the workspace is not written, and any address will do.
    partials = workspace if needed and workspace else Tensor.dense("partials", out.address, (0,), WORKSPACE_DTYPE)
    decodes = bool(tokens == seqs)
    chosen = tile(op, decodes, sm)
    values: dict[str, Any] = {
        **inputs, "out": out, "partials": partials, "seqs": seqs, "splits": splits, "max_blocks": max_blocks,
        "scale": op.scale, "softcap": op.softcap, "window": op.window, "out_stride": out.strides[0],
    }  # fmt: skip
    tiles = tokens // (chosen.block_m // chosen.heads) + seqs
    grid = grid_of(tiles, ceil_div(op.heads, chosen.heads), splits)
    work = [(_spec(op, decodes, sm), grid)]
    if splits > 1:
        work.append((_combine_spec(op), grid_of(seqs, op.heads)))
    return [make_launch(spec, size, {name: values[name] for name, _ in spec.signature}) for spec, size in work]


def workspace_bytes(attrs: Mapping[str, Any], shapes_max: Mapping[str, tuple[int, ...]]) -> int:
    """Returns the bytes for the largest shapes, `shapes_max`. That of block_tables, [seqs, max_blocks], decides."""
    op = Latent.of(attrs, "float32")
    seqs, max_blocks = shapes_max["block_tables"]
    return _partials(op, seqs, op.splits(max_blocks)) * ITEM_BYTES[WORKSPACE_DTYPE]


def _partials(op: Latent, seqs: int, splits: int) -> int:
    """Returns how many numbers the workspace holds: acc, top and total of each split; none for one split."""
    return seqs * splits * op.heads * (op.v_dim + 2) if splits > 1 else 0


def _check_operands(op: Latent, inputs: Mapping[str, Tensor], out: Tensor) -> None:
    """Compares shapes and types with one another. The contents are on the device."""
    tokens, (seqs, max_blocks) = inputs["q"].shape[0], inputs["block_tables"].shape
    pages = inputs["k_pages"].shape[0]
    wanted: dict[str, tuple[tuple[int, ...], str]] = {
        "q": ((tokens, op.heads * op.head_dim), op.dtype),
        "k_pages": ((pages, 1, op.block_size, op.head_dim), op.dtype),
        "seq_starts": ((seqs + 1,), "int32"),
        "context_lens": ((seqs,), "int32"),
        "block_tables": ((seqs, max_blocks), "int32"),
    }
    require(set(inputs) == set(wanted), f"operands must be {', '.join(wanted)}", ", ".join(inputs))
    for name, tensor in inputs.items():
        require_shape(tensor, *wanted[name])
    require_shape(out, (tokens, op.heads * op.v_dim), op.dtype)
    require_dense(*inputs.values(), out)


@functools.cache
def _spec(op: Latent, decodes: bool, sm: int) -> KernelSpec:
    chosen, kind = tile(op, decodes, sm), POINTERS[op.dtype]
    wide = all(columns * ITEM_BYTES[op.dtype] % 16 == 0 for columns in (op.head_dim, op.v_dim))
    return KernelSpec(
        kernel="attention_latent_kernel",
        module=f"{ROOM}.gpu_latent",
        signature=(
            ("q", kind), ("k_pages", kind), ("seq_starts", "*i32"), ("context_lens", "*i32"),
            ("block_tables", "*i32"), ("out", kind), ("partials", "*fp32"), ("seqs", "i32"), ("splits", "i32"),
            ("max_blocks", "i32"), ("scale", "fp32"), ("softcap", "fp32"), ("window", "i32"),
        ),
        constants=(
            ("HEADS", chosen.heads), ("GROUP", op.heads), ("HEAD_DIM", op.head_dim), ("LATENT", op.v_dim),
            ("BLOCK_SIZE", op.block_size), ("BLOCK_M", chosen.block_m), ("BLOCK_N", chosen.block_n),
            ("BLOCK_L", next_power_of_2(op.v_dim)), ("BLOCK_R", max(next_power_of_2(op.head_dim - op.v_dim), 16)),
            ("SPLIT", SPLIT), ("MOST_SPLITS", op.most_splits), ("HAS_WINDOW", op.window > 0),
            ("CHUNKED", op.chunked), ("HAS_SOFTCAP", op.softcap > 0),
        ),
        aligned=("q", "k_pages", "out", "partials") if wide else (),
        num_warps=chosen.num_warps,
        num_stages=chosen.num_stages,
    )  # fmt: skip


@functools.cache
def _combine_spec(op: Latent) -> KernelSpec:
    return KernelSpec(
        kernel="attention_combine_kernel",
        module=f"{ROOM}.gpu_decode",
        signature=(
            ("partials", "*fp32"), ("seq_starts", "*i32"), ("context_lens", "*i32"), ("out", POINTERS[op.dtype]),
            ("splits", "i32"), ("out_stride", "i32"), ("window", "i32"),
        ),
        constants=(
            ("KV_HEADS", 1), ("GROUP", op.heads), ("HEAD_DIM", op.v_dim), ("BLOCK_D", next_power_of_2(op.v_dim)),
            ("SPLIT", SPLIT), ("MOST_SPLITS", op.most_splits), ("HAS_WINDOW", op.window > 0),
            ("CHUNKED", op.chunked), ("AT_ONCE", AT_ONCE),
        ),
        aligned=("partials", "out"),
        num_warps=4,
        num_stages=1,
    )  # fmt: skip
