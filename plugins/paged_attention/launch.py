"""Decides from shapes alone what a call of paged attention starts on a GPU: enqueue cannot read a device's memory.

    prefill   takes the sequences of more than one token   (tokens // BLOCK_Q + seqs tiles, KV heads)
    decode    takes those of one token                     (seqs, KV heads, splits)
    combine   adds up decode's splits                      (seqs, heads)
The device decides which kernel takes a sequence, so a mixed step starts all three. Each leaves the other rows alone.
Shapes rule some out, since every sequence has tokens: as many tokens as sequences are decodes, one sequence of more
tokens is a prefill, and one split needs no sum.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
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
    require_dense,
    require_shape,
)
from tensorwright.plugins.paged_attention.tiles import (
    SPLIT,
    Attention,
    Tile,
    decode_tile,
    prefill_tile,
    require,
)

ROOM = "tensorwright.plugins.paged_attention"
AT_ONCE = 8
"""The number of splits that `combine` loads at a time."""
WORKSPACE_DTYPE = "float32"


def kernels(attrs: Mapping[str, Any], dtypes: Mapping[str, str], sm: int) -> tuple[KernelSpec, ...]:
    """Returns prefill, decode and combine. Only q's type of `dtypes` is needed."""
    op = Attention.of(attrs, dtypes["q"])
    return _prefill_spec(op, sm), _decode_spec(op, sm), _combine_spec(op)


def launches(
    attrs: Mapping[str, Any],
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    workspace: Tensor | None,
    sm: int,
) -> list[Launch]:
    """Makes the launches. Operands have the node's names: q, k_pages, v_pages, k_scales, ..., sinks, slopes; out."""
    op = Attention.of(attrs, inputs["q"].dtype)
    _check_operands(op, inputs, outputs)
    tokens, seqs = inputs["q"].shape[0], inputs["context_lens"].shape[0]
    if tokens == 0 or seqs == 0:
        return []
    started = []
    if tokens > seqs:
        started.append(_prefill(op, inputs, outputs["out"], sm))
    if tokens == 1 or seqs > 1:
        started += _decode(op, inputs, outputs["out"], workspace, sm)
    return started


def workspace_bytes(attrs: Mapping[str, Any], shapes_max: Mapping[str, tuple[int, ...]]) -> int:
    """Returns the bytes for the largest shapes, `shapes_max`. That of block_tables, [seqs, max_blocks], decides."""
    op = Attention.of(attrs, "float32")
    seqs, max_blocks = shapes_max["block_tables"]
    return _partials(op, seqs, op.splits(max_blocks)) * ITEM_BYTES[WORKSPACE_DTYPE]


def _partials(op: Attention, seqs: int, splits: int) -> int:
    """Returns how many numbers the workspace holds: acc, top and total of each split; none for one split."""
    return seqs * splits * op.heads * (op.head_dim + 2) if splits > 1 else 0


def _spec(
    kernel: str, module: str, types: Mapping[str, str | None], constants: Mapping[str, Any], tile: Tile
) -> KernelSpec:
    """`types` are in the function's order; None is an operand that this node lacks. All tensors are dense, so each row
    is aligned if the width is."""
    signature = tuple((name, kind) for name, kind in types.items() if kind)
    fixed = tuple((name, None) for name, kind in types.items() if not kind) + tuple(constants.items())
    pointers = tuple(name for name, kind in signature if kind.startswith("*") and kind != "*i32")
    strides = tuple(name for name in ("q_stride", "out_stride") if name in types and not constants["HEAD_DIM"] % 16)
    return KernelSpec(kernel, f"{ROOM}.{module}", signature, fixed, pointers + strides, tile.num_warps, tile.num_stages)


def _operand_types(op: Attention) -> dict[str, str | None]:
    own, pages = POINTERS[op.dtype], POINTERS["int8" if op.int8_kv else op.dtype]
    scales = "*fp32" if op.int8_kv else None
    return {
        "q": own, "k_pages": pages, "v_pages": pages, "k_scales": scales, "v_scales": scales, "seq_starts": "*i32",
        "context_lens": "*i32", "block_tables": "*i32", "sinks": "*fp32" if op.has_sinks else None,
        "slopes": "*fp32" if op.has_slopes else None, "out": own,
    }  # fmt: skip


FACTS = {"max_blocks": "i32", "q_stride": "i32", "out_stride": "i32", "scale": "fp32", "softcap": "fp32",
         "window": "i32"}  # fmt: skip


def _constants(op: Attention, tile: Tile) -> dict[str, Any]:
    return {
        "HEADS": tile.heads, "GROUP": op.group, "KV_HEADS": op.kv_heads, "HEAD_DIM": op.head_dim,
        "BLOCK_SIZE": op.block_size, "BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n, "BLOCK_D": op.block_d,
        "HAS_WINDOW": op.window > 0, "CHUNKED": op.chunked, "HAS_SOFTCAP": op.softcap > 0, "HAS_SINKS": op.has_sinks,
        "HAS_SLOPES": op.has_slopes, "INT8": op.int8_kv,
    }  # fmt: skip


@functools.cache
def _prefill_spec(op: Attention, sm: int) -> KernelSpec:
    tile = prefill_tile(op, sm)
    types = {**_operand_types(op), "seqs": "i32", **FACTS}
    return _spec("attention_prefill_kernel", "gpu", types, _constants(op, tile), tile)


@functools.cache
def _decode_spec(op: Attention, sm: int) -> KernelSpec:
    tile = decode_tile(op, sm)
    types = {**_operand_types(op), "partials": "*fp32", "splits": "i32", **FACTS}
    constants = {**_constants(op, tile), "SPLIT": SPLIT, "MOST_SPLITS": op.most_splits}
    return _spec("attention_decode_kernel", "gpu_decode", types, constants, tile)


@functools.cache
def _combine_spec(op: Attention) -> KernelSpec:
    types: dict[str, str | None] = {
        "partials": "*fp32", "seq_starts": "*i32", "context_lens": "*i32", "out": POINTERS[op.dtype], "splits": "i32",
        "out_stride": "i32", "window": "i32",
    }  # fmt: skip
    constants = {
        "KV_HEADS": op.kv_heads, "GROUP": op.group, "HEAD_DIM": op.head_dim, "BLOCK_D": op.block_d, "SPLIT": SPLIT,
        "MOST_SPLITS": op.most_splits, "HAS_WINDOW": op.window > 0, "CHUNKED": op.chunked, "AT_ONCE": AT_ONCE,
    }  # fmt: skip
    return _spec("attention_combine_kernel", "gpu_decode", types, constants, Tile(1, AT_ONCE, 1, 4, 1))


def _values(op: Attention, inputs: Mapping[str, Tensor], out: Tensor) -> dict[str, Any]:
    """Returns the arguments that prefill and decode share, by name."""
    operands = {name: inputs[name] for name, kind in _operand_types(op).items() if kind and name != "out"}
    return {
        **operands, "out": out, "max_blocks": inputs["block_tables"].shape[1], "q_stride": inputs["q"].strides[0],
        "out_stride": out.strides[0], "scale": op.scale, "softcap": op.softcap, "window": op.window,
    }  # fmt: skip


def _prefill(op: Attention, inputs: Mapping[str, Tensor], out: Tensor, sm: int) -> Launch:
    tile, spec = prefill_tile(op, sm), _prefill_spec(op, sm)
    tokens, seqs = inputs["q"].shape[0], inputs["context_lens"].shape[0]
    tiles = tokens // (tile.block_m // tile.heads) + seqs
    grid = grid_of(tiles, op.kv_heads * ceil_div(op.group, tile.heads))
    return make_launch(spec, grid, {**_values(op, inputs, out), "seqs": seqs})


def _decode(
    op: Attention, inputs: Mapping[str, Tensor], out: Tensor, workspace: Tensor | None, sm: int
) -> list[Launch]:
    tile = decode_tile(op, sm)
    seqs, max_blocks = inputs["block_tables"].shape
    splits = op.splits(max_blocks)
    needed = _partials(op, seqs, splits)
    if needed:
        got = 0 if workspace is None or workspace.dtype != WORKSPACE_DTYPE else workspace.shape[0]
        require(got >= needed, f"the workspace must be float32 [{needed}] or more", got)
    # If all sequences have one split, the workspace is not written, and any address will do.
    partials = workspace if needed and workspace else Tensor.dense("partials", out.address, (0,), WORKSPACE_DTYPE)
    grid = grid_of(seqs, op.kv_heads * ceil_div(op.group, tile.heads), splits)
    values = {**_values(op, inputs, out), "partials": partials, "splits": splits}
    started = [make_launch(_decode_spec(op, sm), grid, values)]
    if splits > 1:
        spec = _combine_spec(op)
        taken = {name: values[name] for name, _ in spec.signature}
        started.append(make_launch(spec, grid_of(seqs, op.heads), taken))
    return started


def _check_operands(op: Attention, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> None:
    """Compares shapes and types with one another. The contents are on the device."""
    tokens, (seqs, max_blocks) = inputs["q"].shape[0], inputs["block_tables"].shape
    pages = inputs["k_pages"].shape[0]
    page = (pages, op.kv_heads, op.block_size, op.head_dim)
    kv = "int8" if op.int8_kv else op.dtype
    wanted: dict[str, tuple[tuple[int, ...], str]] = {
        "q": ((tokens, op.width), op.dtype), "k_pages": (page, kv), "v_pages": (page, kv),
        "seq_starts": ((seqs + 1,), "int32"), "context_lens": ((seqs,), "int32"),
        "block_tables": ((seqs, max_blocks), "int32"),
    }  # fmt: skip
    if op.int8_kv:
        wanted |= {"k_scales": (page[:3], "float32"), "v_scales": (page[:3], "float32")}
    wanted |= {name: ((op.heads,), "float32") for name, there in op.vectors.items() if there}
    require(set(inputs) == set(wanted), f"operands must be {', '.join(wanted)}", ", ".join(inputs))
    for name, tensor in inputs.items():
        require_shape(tensor, *wanted[name])
    require_shape(outputs["out"], *wanted["q"])
    require_dense(*inputs.values(), outputs["out"])
