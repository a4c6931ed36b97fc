"""Makes what a weight-only int4 product starts on a target that has a library of dense products.

    inputs, outputs and attrs: those of launch.py

Up to MAX_ROWS rows of x it is the kernels of launch.py, `narrow` where they may be. For more rows the matrix is
dequantized, once, into the workspace, a piece of its columns after the other, and the library multiplies x by each
piece. There a weight is an integer times its scale, rounded to x's type; the kernels of launch.py never round it.

The bound is where both take as long by what an H100 measured (docs/gpu.md): the kernel makes about 300 TFLOP/s, a dense
product 650, and dequantizing moves 2.5 bytes for each weight at 2.4 TB/s. Then (2 / 300 - 2 / 650) rows = 2.5 / 2.4
gives 290 rows, whatever the sizes of the matrix.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tensorwright.engine_format.dtypes import ITEM_BYTES
from tensorwright.errors import KernelError
from tensorwright.plugins.gpu.launch import (
    POINTERS,
    DenseProduct,
    KernelSpec,
    Launch,
    Tensor,
    ceil_div,
    grid_of,
    make_launch,
)
from tensorwright.plugins.quantized_matmul import launch

MAX_ROWS = 256
"""The most rows of x that the kernels of launch.py multiply. The next multiple of their blocks is 320."""
PIECE_BYTES = 128 << 20
"""The bytes of a dequantized piece, at most: a whole matrix of an 8 B Llama, but for half of its gates. Smaller pieces
would leave multiprocessors without a tile of the product, and a head's matrix as a whole would take 1 GiB."""
PIECE_UNIT = 256
"""A piece has a multiple of so many columns, so that pieces of vectors and of y are aligned."""
COLUMNS = 64
"""The columns of a program that dequantizes."""
ALIGNED_K = 8
"""K must be a multiple of this: rows of x and of a piece then begin at multiples of 16 bytes, as the library wants."""


def kernels(attrs: Mapping[str, Any], dtypes: Mapping[str, str], sm: int) -> tuple[KernelSpec, ...]:
    """Returns the kernels for all numbers of tokens."""
    found = launch.kernels({**attrs, "narrow": True}, dtypes, sm)
    return (*found, _spec(attrs, dtypes["x"])) if _is_dense(attrs, dtypes["x"]) else found


def launches(
    attrs: Mapping[str, Any],
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    workspace: Tensor | None,
    sm: int,
) -> list[Launch | DenseProduct]:
    """Makes launches and products. `workspace`: any type, of at least `workspace_bytes`."""
    x, y = inputs["x"], outputs["y"]
    if not _is_dense(attrs, x.dtype) or x.shape[0] <= MAX_ROWS:
        return [*launch.launches({**attrs, "narrow": True}, inputs, outputs, workspace, sm)]
    launch.check(attrs, inputs, y)
    n, k, piece = attrs["n"], attrs["k"], _piece(attrs)
    if workspace is None or workspace.shape[0] * workspace.item_bytes < _piece_bytes(attrs):
        needed = _piece_bytes(attrs)
        raise KernelError(
            f"weight_only_linear: {x.shape[0]} tokens need a workspace of {needed} bytes, got {workspace}"
        )
    found: list[Launch | DenseProduct] = []
    for first in range(0, n, piece):
        columns = min(piece, n - first)
        w = Tensor.dense("w", workspace.address, (columns, k), x.dtype)
        vectors = {name: _columns_from(inputs[name], first, columns) for name in ("packed", "scales")}
        values = {**vectors, "w": w, "columns": columns, "N": n, "K": k}
        grid = grid_of(ceil_div(columns, COLUMNS), ceil_div(k, attrs["group"]))
        found.append(make_launch(_spec(attrs, x.dtype), grid, values))
        bias = _columns_from(inputs["bias"], first, columns) if "bias" in inputs else None
        found.append(DenseProduct(x, w, _columns_from(y, first, columns), bias))
    return found


def workspace_bytes(attrs: Mapping[str, Any], shapes_max: Mapping[str, tuple[int, ...]]) -> int:
    """Returns enough for every number of tokens up to that of shapes_max["x"], on every SM."""
    dense = _piece_bytes(attrs) if attrs["k"] % ALIGNED_K == 0 and shapes_max["x"][0] > MAX_ROWS else 0
    return max(launch.workspace_bytes({**attrs, "narrow": True}, shapes_max), dense)


def _is_dense(attrs: Mapping[str, Any], dtype: str) -> bool:
    """Whether many rows are multiplied by the library. float32 is not: the library's products of it are slow too."""
    return dtype != "float32" and bool(attrs["k"] % ALIGNED_K == 0)


def _piece(attrs: Mapping[str, Any]) -> int:
    """Returns the columns of a piece."""
    fitting = PIECE_BYTES // (attrs["k"] * ITEM_BYTES["float16"]) // PIECE_UNIT * PIECE_UNIT
    return min(max(fitting, PIECE_UNIT), int(attrs["n"]))


def _piece_bytes(attrs: Mapping[str, Any]) -> int:
    return _piece(attrs) * int(attrs["k"]) * ITEM_BYTES["float16"]


def _columns_from(tensor: Tensor, first: int, columns: int) -> Tensor:
    """Returns a part of the last dimension, with the strides of the whole."""
    address = tensor.address + first * tensor.item_bytes
    return replace(tensor, address=address, shape=(*tensor.shape[:-1], columns))


def _spec(attrs: Mapping[str, Any], dtype: str) -> KernelSpec:
    pointers = (("packed", "*i32"), ("scales", POINTERS[dtype]), ("w", POINTERS[dtype]))
    wide = ("N",) if attrs["n"] % 16 == 0 else ()
    return KernelSpec(
        kernel="int4_dequantize_kernel",
        module=launch.MODULE,
        signature=(*pointers, ("columns", "i32"), ("N", "i32"), ("K", "i32")),
        constants=(("GROUP", attrs["group"]), ("COLUMNS", COLUMNS)),
        aligned=(*(name for name, _ in pointers), *wide, *(("K",) if attrs["k"] % 16 == 0 else ())),
        num_warps=4,
    )
