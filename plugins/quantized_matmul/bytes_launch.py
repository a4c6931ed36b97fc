"""Makes the launches of weight-only products of 8 bits: y = x w^T + bias.

    inputs   x [T, K], values [N, S] int8 with S >= K, scales [N, groups] of x's type, bias [N] (may be absent)
    outputs  y [T, N]: x's type or float32; bias: either, too
attrs: n, k, kind ("int" for int8, "fp" for the bytes of E4M3), and group: 32, 64, 128, or 0 for one scale of each row.
Elements of a row of `values` from K on are not read. If few tokens give a GPU too few blocks, K is split: the parts'
sums go through the workspace and are added in order. float32 has no tensor cores: it is right, and slow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensorwright.errors import KernelError
from tensorwright.plugins.gpu.launch import (
    MULTIPROCESSORS,
    KernelSpec,
    Launch,
    Tensor,
    ceil_div,
    grid_of,
    make_launch,
    require_dense,
    require_shape,
)
from tensorwright.plugins.quantized_matmul.launch import (
    BLOCKS_OF_AN_SM,
    REDUCE_BLOCK,
    pointers,
    reduce_spec,
)

MODULE = "tensorwright.plugins.quantized_matmul.gpu_bytes"
GROUPS = (0, 32, 64, 128)
KINDS = ("int", "fp")
ROWS = (8, 16, 64)
"""The most rows of x of a program, in each specialisation."""
MAX_SPLIT_TOKENS = 64
"""K is split for at most this many tokens. More of them give a GPU enough blocks."""
COLUMNS = 128
WARPS = {8: 4, 16: 4, 64: 8}
DEPTH = {8: 128, 16: 128, 64: 64}
"""The most elements of K at once, by rows."""
FLOAT32_DEPTH = 32
STAGES = 3
MIN_SPLIT = 512
"""The least elements of K of a split, and what its beginning is a multiple of."""
MAX_SPLITS = 16


def kernels(attrs: Mapping[str, Any], dtypes: Mapping[str, str], sm: int) -> tuple[KernelSpec, ...]:
    """Returns the kernels for all numbers of tokens."""
    return (*(_gemm(attrs, dtypes, rows) for rows in _forms(dtypes["x"])), reduce_spec(attrs, dtypes))


def launches(
    attrs: Mapping[str, Any],
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    workspace: Tensor | None,
    sm: int,
) -> list[Launch]:
    """Makes no launch for no tokens, two if K is split. `workspace`: any type, of at least `workspace_bytes`."""
    x, y = inputs["x"], outputs["y"]
    groups = ceil_div(attrs["k"], attrs["group"]) if attrs["group"] else 1
    check_operands("weight_only_linear", attrs, inputs, y, groups, x.dtype)
    tokens, n, k = x.shape[0], attrs["n"], attrs["k"]
    if tokens == 0:
        return []
    dtypes = {name: tensor.dtype for name, tensor in {**inputs, "y": y}.items()}
    rows = _rows(tokens, x.dtype)
    splits, depth = split(attrs, sm) if tokens <= MAX_SPLIT_TOKENS else (1, k)
    needed = 4 * splits * tokens * n if splits > 1 else 0
    if splits > 1 and (workspace is None or workspace.shape[0] * workspace.item_bytes < needed):
        raise KernelError(f"weight_only_linear: {tokens} tokens need a workspace of {needed} bytes, got {workspace}")
    at = workspace.address if splits > 1 and workspace is not None else y.address
    parts = Tensor.dense("parts", at, (splits, tokens, n), "float32")
    sizes = {"tokens": tokens, "N": n, "splits": splits}
    widths = {"K": k, "row_bytes": inputs["values"].shape[1], "groups": inputs["scales"].shape[1]}
    values = {**inputs, "y": y, "parts": parts, **sizes, **widths, "depth_of_a_split": depth}
    grid = grid_of(ceil_div(n, COLUMNS), ceil_div(tokens, rows), splits)
    found = [make_launch(_gemm(attrs, dtypes, rows), grid, values)]
    if splits > 1:
        bias = {"bias": inputs["bias"]} if "bias" in inputs else {}
        grid = grid_of(ceil_div(tokens * n, REDUCE_BLOCK))
        found.append(make_launch(reduce_spec(attrs, dtypes), grid, {"parts": parts, "y": y, **bias, **sizes}))
    return found


def workspace_bytes(attrs: Mapping[str, Any], shapes_max: Mapping[str, tuple[int, ...]]) -> int:
    """Returns enough for every number of tokens up to that of shapes_max["x"], on every SM."""
    tokens = min(shapes_max["x"][0], MAX_SPLIT_TOKENS)
    most = max(split(attrs, sm)[0] for sm in MULTIPROCESSORS)
    return 4 * most * tokens * int(attrs["n"]) if most > 1 else 0


def split(attrs: Mapping[str, Any], sm: int) -> tuple[int, int]:
    """Returns (parts of K, elements of each part) for few tokens."""
    k, blocks = attrs["k"], ceil_div(attrs["n"], COLUMNS)
    wanted = MULTIPROCESSORS.get(sm, MULTIPROCESSORS[89]) * BLOCKS_OF_AN_SM["gemm"]
    splits = max(min(wanted // blocks, k // MIN_SPLIT, MAX_SPLITS), 1)
    of_each = ceil_div(ceil_div(k, splits), MIN_SPLIT) * MIN_SPLIT
    return ceil_div(k, of_each), of_each


def _forms(dtype: str) -> tuple[int, ...]:
    return ROWS[:1] if dtype == "float32" else ROWS


def _rows(tokens: int, dtype: str) -> int:
    """Returns the rows of x that one program takes."""
    forms = _forms(dtype)
    return next((rows for rows in forms if tokens <= rows), forms[-1])


def check_operands(
    op: str, attrs: Mapping[str, Any], inputs: Mapping[str, Tensor], y: Tensor, groups: int, scales: str
) -> None:
    """Raises KernelError, which names the op, for operands of a product of bytes that do not fit.

    groups, scales: how many scales a row of the matrix has, and of which type.
    """
    n, k = attrs["n"], attrs["k"]
    x, values = inputs["x"], inputs["values"]
    tokens = x.shape[0]
    require_shape(x, (tokens, k), x.dtype)
    if values.shape[1] < k:
        raise KernelError(f"{op}: a row of {values.name} must hold {k} bytes, got {values.shape[1]}")
    require_shape(values, (n, values.shape[1]), "int8")
    require_shape(inputs["scales"], (n, groups), scales)
    for tensor, shape in ((y, (tokens, n)), *(((inputs["bias"], (n,)),) if "bias" in inputs else ())):
        require_shape(tensor, shape, tensor.dtype if tensor.dtype == "float32" else x.dtype)
    require_dense(*inputs.values(), y)


def _gemm(attrs: Mapping[str, Any], dtypes: Mapping[str, str], rows: int) -> KernelSpec:
    n, k, group, kind = attrs["n"], attrs["k"], attrs["group"], attrs["kind"]
    if group not in GROUPS or kind not in KINDS or min(n, k) < 1:
        raise KernelError(
            f"weight_only_linear of 8 bits: kind must be one of {KINDS}, group one of {GROUPS}, and n and k at least "
            f"1; got kind {kind!r}, group {group}, n {n}, k {k}"
        )
    tensors = pointers({**dtypes, "values": "int8"}, ("x", "values", "scales", "bias", "y", "parts"))
    integers = ("tokens", "N", "K", "row_bytes", "groups", "splits", "depth_of_a_split")
    # Rows of x and of values then begin at multiples of 16 bytes.
    wide = ("K", "row_bytes", "depth_of_a_split") if k % 16 == 0 else ()
    deepest = FLOAT32_DEPTH if dtypes["x"] == "float32" else DEPTH[rows]
    return KernelSpec(
        kernel="bytes_gemm_kernel",
        module=MODULE,
        signature=(*tensors, *((name, "i32") for name in integers)),
        constants=(
            *(() if "bias" in dtypes else (("bias", None),)),
            ("GROUP", group),
            ("E4M3", kind == "fp"),
            ("DEPTH", min(group, deepest) if group else deepest),
            ("ROWS", rows),
            ("COLUMNS", COLUMNS),
        ),
        aligned=(*(name for name, _ in tensors if name != "scales"), *wide),
        num_warps=WARPS[rows],
        num_stages=STAGES,
    )
