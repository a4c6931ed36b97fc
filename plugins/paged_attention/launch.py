"""Decides from shapes alone what a call of paged attention starts on a GPU: enqueue cannot read a device's memory.

    prefill   takes the sequences of more than one token   (tokens // BLOCK_Q + seqs tiles, KV heads)
    decode    takes those of one token                     (items of a list, KV heads), or (seqs, KV heads, splits)
    combine   adds up decode's splits                      (seqs, heads)
The device decides which kernel takes a sequence, so a mixed step starts all three. Each leaves the other rows alone.
Shapes rule some out, since every sequence has tokens: as many tokens as sequences are decodes, one sequence of more
tokens is a prefill, and one split needs no sum.

The operand `work` is the list of a step's decodes (work_list.py), which another kernel has made on the GPU before. A
call without it, such as TensorRT's, starts a program for each split that the widest block table could need.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tensorwright.engine_format.dtypes import ITEM_BYTES
from tensorwright.plugins.gpu.launch import (
    MULTIPROCESSORS,
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
    programs_of_an_item,
    require,
)
from tensorwright.plugins.paged_attention.work_list import bounds, columns, is_needed, max_partials

ROOM = "tensorwright.plugins.paged_attention"
AT_ONCE = 8
"""The number of splits that `combine` loads at a time."""
WORKSPACE_DTYPE = "float32"


def kernels(attrs: Mapping[str, Any], dtypes: Mapping[str, str], sm: int) -> tuple[KernelSpec, ...]:
    """Returns prefill, decode and combine. Only q's type of `dtypes` is needed, and whether `work` is there."""
    op, listed = Attention.of(attrs, dtypes["q"]), "work" in dtypes
    return _prefill_spec(op, sm), _decode_spec(op, sm, listed), _combine_spec(op, listed)


def launches(
    attrs: Mapping[str, Any],
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    workspace: Tensor | None,
    sm: int,
) -> list[Launch]:
    """Makes the launches. Operands have the node's names: q, k_pages, v_pages, ..., sinks, slopes; work; out."""
    op = Attention.of(attrs, inputs["q"].dtype)
    _check_operands(op, inputs, outputs)
    tokens, seqs = inputs["q"].shape[0], inputs["context_lens"].shape[0]
    if tokens == 0 or seqs == 0:
        return []
    started = []
    if tokens > seqs:
        started.append(_prefill(op, inputs, outputs["out"], sm))
    if is_needed(tokens, seqs):
        started += _decode(op, inputs, outputs["out"], workspace, sm)
    return started


def workspace_bytes(attrs: Mapping[str, Any], shapes_max: Mapping[str, tuple[int, ...]]) -> int:
    """Returns the bytes for the largest shapes, `shapes_max`, on every SM. That of block_tables, [seqs, max_blocks],
    decides, and whether `work` is there."""
    op = Attention.of(attrs, "float32")
    seqs, max_blocks = shapes_max["block_tables"]
    if "work" in shapes_max:
        of_types = (op, replace(op, dtype="float16"))
        places = max(max_partials(each, sm, seqs, max_blocks) for each in of_types for sm in MULTIPROCESSORS)
    else:
        splits = op.splits(max_blocks)
        places = seqs * splits if splits > 1 else 0
    return _partials(op, places) * ITEM_BYTES[WORKSPACE_DTYPE]


def _partials(op: Attention, places: int) -> int:
    """Returns how many numbers the workspace holds: acc, top and total of each split."""
    return places * op.heads * (op.head_dim + 2)


def _spec(
    kernel: str, module: str, types: Mapping[str, str | None], constants: Mapping[str, Any], tile: Tile
) -> KernelSpec:
    """`types` are in the function's order; None is an operand that this node lacks. All tensors are dense, so each row
    is aligned if the width is."""
    signature = tuple((name, kind) for name, kind in types.items() if kind)
    fixed = tuple((name, None) for name, kind in types.items() if not kind) + tuple(constants.items())
    pointers = tuple(name for name, kind in signature if kind.startswith("*") and kind != "*i32")
    strides = tuple(name for name in ("q_stride", "out_stride") if name in types and not constants["HEAD_DIM"] % 16)
    added = ("slopes", "CHUNKED", "HAS_SLOPES", "E4M3")
    later = tuple(name for name, value in fixed if name in added and not value)
    return KernelSpec(
        kernel, f"{ROOM}.{module}", signature, fixed, pointers + strides, tile.num_warps, tile.num_stages, later=later
    )


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
        "HAS_SLOPES": op.has_slopes, "INT8": op.int8_kv, "E4M3": op.e4m3_kv,
    }  # fmt: skip


@functools.cache
def _prefill_spec(op: Attention, sm: int) -> KernelSpec:
    tile = prefill_tile(op, sm)
    types = {**_operand_types(op), "seqs": "i32", **FACTS}
    return _spec("attention_prefill_kernel", "gpu", types, _constants(op, tile), tile)


@functools.cache
def _decode_spec(op: Attention, sm: int, listed: bool) -> KernelSpec:
    tile, operands = decode_tile(op, sm), _operand_types(op)
    if listed:
        types = {name: kind for name, kind in operands.items() if name not in ("seq_starts", "context_lens", "out")}
        types |= {"work": "*i32", "out": operands["out"], "partials": "*fp32", **FACTS}
        return _spec("attention_listed_decode_kernel", "gpu_decode", types, _constants(op, tile), tile)
    types = {**operands, "partials": "*fp32", "splits": "i32", **FACTS}
    constants = {**_constants(op, tile), "SPLIT": SPLIT, "MOST_SPLITS": op.most_splits}
    return _spec("attention_decode_kernel", "gpu_decode", types, constants, tile)


@functools.cache
def _combine_spec(op: Attention, listed: bool) -> KernelSpec:
    tile, own = Tile(1, AT_ONCE, 1, 4, 1), POINTERS[op.dtype]
    constants = {"KV_HEADS": op.kv_heads, "GROUP": op.group, "HEAD_DIM": op.head_dim, "BLOCK_D": op.block_d}
    types: dict[str, str | None] = {"partials": "*fp32", "seq_starts": "*i32"}
    if listed:
        types |= {"work": "*i32", "out": own, "items": "i32", "out_stride": "i32"}
        constants |= {"MOST_SPLITS": op.most_splits, "AT_ONCE": AT_ONCE}
        return _spec("attention_listed_combine_kernel", "gpu_decode", types, constants, tile)
    types |= {"context_lens": "*i32", "out": own, "splits": "i32", "out_stride": "i32", "window": "i32"}
    constants |= {"SPLIT": SPLIT, "MOST_SPLITS": op.most_splits, "HAS_WINDOW": op.window > 0, "CHUNKED": op.chunked}
    return _spec("attention_combine_kernel", "gpu_decode", types, {**constants, "AT_ONCE": AT_ONCE}, tile)


def _values(op: Attention, inputs: Mapping[str, Tensor], out: Tensor) -> dict[str, Any]:
    """Returns the arguments that prefill and decode share, by name."""
    return {
        **inputs, "out": out, "max_blocks": inputs["block_tables"].shape[1], "q_stride": inputs["q"].strides[0],
        "out_stride": out.strides[0], "scale": op.scale, "softcap": op.softcap, "window": op.window,
    }  # fmt: skip


def _prefill(op: Attention, inputs: Mapping[str, Tensor], out: Tensor, sm: int) -> Launch:
    tile, spec = prefill_tile(op, sm), _prefill_spec(op, sm)
    tokens, seqs = inputs["q"].shape[0], inputs["context_lens"].shape[0]
    tiles = tokens // (tile.block_m // tile.heads) + seqs
    grid = grid_of(tiles, op.kv_heads * ceil_div(op.group, tile.heads))
    return _launch(spec, grid, {**_values(op, inputs, out), "seqs": seqs})


def _decode(
    op: Attention, inputs: Mapping[str, Tensor], out: Tensor, workspace: Tensor | None, sm: int
) -> list[Launch]:
    seqs, max_blocks = inputs["block_tables"].shape
    parts, listed = programs_of_an_item(op, sm), "work" in inputs
    if listed:
        items, splits, _ = bounds(op, sm, seqs, max_blocks)
        grid = grid_of(items, parts)
    else:
        splits = op.splits(max_blocks)
        items, grid = seqs * splits, grid_of(seqs, parts, splits)
    needed = _partials(op, items) if splits > 1 else 0
    if needed:
        got = 0 if workspace is None or workspace.dtype != WORKSPACE_DTYPE else workspace.shape[0]
        require(got >= needed, f"the workspace must be float32 [{needed}] or more", got)
    # If all sequences have one split, the workspace is not written, and any address will do.
    partials = workspace if needed and workspace else Tensor.dense("partials", out.address, (0,), WORKSPACE_DTYPE)
    values = {**_values(op, inputs, out), "partials": partials, "splits": splits, "items": items}
    started = [_launch(_decode_spec(op, sm, listed), grid, values)]
    if splits > 1:
        started.append(_launch(_combine_spec(op, listed), grid_of(seqs, op.heads), values))
    return started


def _launch(spec: KernelSpec, grid: tuple[int, int, int], values: Mapping[str, Any]) -> Launch:
    """Makes a launch from the values that the kernel takes; others are left out."""
    return make_launch(spec, grid, {name: values[name] for name, _ in spec.signature})


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
    if "work" in inputs:
        wanted["work"] = ((seqs, columns(op)), "int32")
    require(set(inputs) == set(wanted), f"operands must be {', '.join(wanted)}", ", ".join(inputs))
    for name, tensor in inputs.items():
        require_shape(tensor, *wanted[name])
    require_shape(outputs["out"], *wanted["q"])
    require_dense(*inputs.values(), outputs["out"])
