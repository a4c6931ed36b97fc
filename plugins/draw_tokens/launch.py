"""Makes the launches of draw_tokens: four kernels, whose results but the tokens lie in the workspace.

    inputs   logits [R, V] float32, draws [R, FIELDS] int32
    outputs  tokens [R] int32
attrs: `columns` (V), and `max_rows`, the most rows of any call, by which the workspace is laid out.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from tensorwright.engine_format.dtypes import ITEM_BYTES
from tensorwright.errors import KernelError
from tensorwright.plugins.draw_tokens.op import CANDIDATES, FIELDS, LEVELS, MAX_VOCABULARY
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

MODULE = "tensorwright.plugins.draw_tokens.gpu"
BLOCK = 4096
"""The columns of a chunk: 16 for each of 256 threads."""
PIECE_ALIGNMENT = 256
KERNELS = (
    ("draw_maxima_kernel", "maxima places", "V FIELDS CHUNKS BLOCK", 8),
    ("draw_sums_kernel", "maxima counts sums", "V FIELDS CHUNKS CHUNK_BLOCK BLOCK LEVELS", 8),
    ("draw_gather_kernel", "maxima counts sums scores ids", "V FIELDS CHUNKS CHUNK_BLOCK BLOCK LEVELS CANDIDATES", 8),
    ("draw_finish_kernel", "maxima places counts sums scores ids tokens",
     "V FIELDS CHUNKS CHUNK_BLOCK BLOCK LEVELS CANDIDATES", 16),
)  # fmt: skip
"""The kernels: the arguments behind logits and draws, the constants, and the warps."""


def kernels(attrs: Mapping[str, Any], dtypes: Mapping[str, str], sm: int) -> tuple[KernelSpec, ...]:
    """Returns the four kernels for a number of columns, in the order in which they are started."""
    columns = attrs["columns"]
    if not 1 <= columns <= MAX_VOCABULARY:
        raise KernelError(f"draw_tokens on a GPU: a row must have 1 to {MAX_VOCABULARY} logits, got {columns}")
    block, chunks, candidates = _sizes(columns)
    constants = {
        "V": columns, "FIELDS": len(FIELDS), "CHUNKS": chunks, "CHUNK_BLOCK": next_power_of_2(chunks), "BLOCK": block,
        "LEVELS": LEVELS, "CANDIDATES": candidates,
    }  # fmt: skip
    types = {"logits": "float32", "draws": "int32", "tokens": "int32"}
    types |= {name: dtype for name, (_, dtype) in _pieces(attrs).items()}
    return tuple(
        KernelSpec(
            kernel=kernel,
            module=MODULE,
            signature=tuple((name, POINTERS[types[name]]) for name in ("logits", "draws", *arguments.split())),
            constants=tuple((name, constants[name]) for name in names.split()),
            aligned=("logits", "draws", *arguments.split()),
            num_warps=num_warps,
        )
        for kernel, arguments, names, num_warps in KERNELS
    )


def launches(
    attrs: Mapping[str, Any],
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    workspace: Tensor | None,
    sm: int,
) -> list[Launch]:
    """Makes no launch for no rows."""
    logits, draws, tokens = inputs["logits"], inputs["draws"], outputs["tokens"]
    rows = logits.shape[0]
    require_shape(logits, (rows, attrs["columns"]), "float32")
    require_shape(draws, (rows, len(FIELDS)), "int32")
    require_shape(tokens, (rows,), "int32")
    require_dense(logits, draws, tokens)
    if rows > attrs["max_rows"] or workspace is None:
        raise KernelError(f"draw_tokens: a workspace for {attrs['max_rows']} rows is there, and {rows} are drawn from")
    if rows == 0:
        return []
    there = {"logits": logits, "draws": draws, "tokens": tokens, **_in(workspace, attrs)}
    *by_chunk, finish = kernels(attrs, {}, sm)
    grid = grid_of(rows, by_chunk[0].size("CHUNKS"))
    made = [make_launch(spec, grid, {name: there[name] for name in spec.names}) for spec in by_chunk]
    return [*made, make_launch(finish, grid_of(rows), {name: there[name] for name in finish.names})]


def workspace_bytes(attrs: Mapping[str, Any], shapes_max: Mapping[str, tuple[int, ...]]) -> int:
    return sum(_bytes(shape, dtype) for shape, dtype in _pieces(attrs).values())


def _sizes(columns: int) -> tuple[int, int, int]:
    """Returns the columns of a chunk, the chunks of a row, and the most candidates."""
    block = min(next_power_of_2(columns), BLOCK)
    return block, ceil_div(columns, block), min(CANDIDATES, next_power_of_2(columns))


def _pieces(attrs: Mapping[str, Any]) -> dict[str, tuple[tuple[int, ...], str]]:
    """Returns the shape and type of each part of the workspace, in their order."""
    rows = attrs["max_rows"]
    _, chunks, candidates = _sizes(attrs["columns"])
    return {
        "maxima": ((rows, chunks), "float32"),
        "places": ((rows, chunks), "int32"),
        "counts": ((rows, chunks, LEVELS), "int32"),
        "sums": ((rows, chunks, LEVELS), "int64"),
        "scores": ((rows, candidates), "float32"),
        "ids": ((rows, candidates), "int32"),
    }


def _bytes(shape: tuple[int, ...], dtype: str) -> int:
    return ceil_div(prod(shape) * ITEM_BYTES[dtype], PIECE_ALIGNMENT) * PIECE_ALIGNMENT


def _in(workspace: Tensor, attrs: Mapping[str, Any]) -> dict[str, Tensor]:
    """Returns the parts of the workspace."""
    found, offset = {}, 0
    for name, (shape, dtype) in _pieces(attrs).items():
        found[name] = Tensor.dense(name, workspace.address + offset, shape, dtype)
        offset += _bytes(shape, dtype)
    if offset > workspace.shape[0] * workspace.item_bytes:
        raise KernelError(f"draw_tokens: the workspace must have {offset} bytes, got {workspace.shape[0]} elements")
    return found
