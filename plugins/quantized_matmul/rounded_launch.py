"""Makes the launches of w8a8 products: y = x' w'^T + bias, rows of x and of w rounded to int8 with a scale each.

    inputs   x [T, K], values [N, S] int8 with S >= K, scales [N, 1] float32, bias [N] (may be absent)
    outputs  y [T, N]: x's type or float32; bias: either, too
attrs: n, k. Elements of a row of `values` from K on are not read. Rows of x are rounded first. If few tokens give a GPU
too few blocks, K is split, and the parts' whole sums are added.

The workspace has the parts, then a record for each token: its scale, and its codes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensorwright.errors import KernelError
from tensorwright.plugins.gpu.launch import (
    COLUMN_BLOCK,
    MULTIPROCESSORS,
    KernelSpec,
    Launch,
    Tensor,
    ceil_div,
    grid_of,
    make_launch,
    next_power_of_2,
)
from tensorwright.plugins.quantized_matmul.bytes_launch import MAX_SPLIT_TOKENS, check_operands, split
from tensorwright.plugins.quantized_matmul.launch import REDUCE_BLOCK, pointers

MODULE = "tensorwright.plugins.quantized_matmul.gpu_rounded"
ROWS = (8, 16, 64)
"""The most rows of x of a program, in each specialisation."""
COLUMNS = 128
WARPS = {8: 4, 16: 4, 64: 8}
DEPTH = 128
"""Elements of K at once: 16 KiB of weights."""
STAGES = 3
MAX_K = (2**31 - 1) // 127**2
"""Sums of so many products of int8 fit into 32 bits."""
RECORD_HEAD = 16
"""Bytes of a record before its codes; the scale is in the first four."""
ALIGNMENT = 256


def kernels(attrs: Mapping[str, Any], dtypes: Mapping[str, str], sm: int) -> tuple[KernelSpec, ...]:
    """Returns the kernels for all numbers of tokens."""
    return (_round(attrs, dtypes), *(_gemm(attrs, dtypes, rows) for rows in ROWS), _sum(attrs, dtypes))


def launches(
    attrs: Mapping[str, Any],
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    workspace: Tensor | None,
    sm: int,
) -> list[Launch]:
    """Makes no launch for no tokens, three if K is split. `workspace`: any type, of at least `workspace_bytes`."""
    x, y = inputs["x"], outputs["y"]
    _check(attrs, inputs, y)
    tokens, n, k = x.shape[0], attrs["n"], attrs["k"]
    if tokens == 0:
        return []
    needed = _parts_bytes(attrs) + tokens * _record_bytes(attrs)
    if workspace is None or workspace.shape[0] * workspace.item_bytes < needed:
        raise KernelError(f"quantized_linear: {tokens} tokens need a workspace of {needed} bytes, got {workspace}")
    dtypes = {name: tensor.dtype for name, tensor in {**inputs, "y": y}.items()}
    rows = next((rows for rows in ROWS if tokens <= rows), ROWS[-1])
    splits, depth = split(attrs, sm) if tokens <= MAX_SPLIT_TOKENS else (1, k)
    record, records = _record_bytes(attrs), workspace.address + _parts_bytes(attrs)
    values = {
        **inputs,
        "y": y,
        "parts": Tensor.dense("parts", workspace.address, (splits, tokens, n), "int32"),
        "row_scales": Tensor("row_scales", records, (tokens,), (record // 4,), "float32"),
        "codes": Tensor("codes", records + RECORD_HEAD, (tokens, k), (record, 1), "int8"),
        "tokens": tokens,
        "N": n,
        "K": k,
        "splits": splits,
        "depth_of_a_split": depth,
        "row_bytes": inputs["values"].shape[1],
    }
    work = [
        (_round(attrs, dtypes), grid_of(tokens)),
        (_gemm(attrs, dtypes, rows), grid_of(ceil_div(n, COLUMNS), ceil_div(tokens, rows), splits)),
    ]
    if splits > 1:
        work.append((_sum(attrs, dtypes), grid_of(ceil_div(tokens * n, REDUCE_BLOCK))))
    return [make_launch(spec, grid, {name: values[name] for name, _ in spec.signature}) for spec, grid in work]


def workspace_bytes(attrs: Mapping[str, Any], shapes_max: Mapping[str, tuple[int, ...]]) -> int:
    """Returns enough for every number of tokens up to that of shapes_max["x"], on every SM."""
    return _parts_bytes(attrs) + shapes_max["x"][0] * _record_bytes(attrs)


def _parts_bytes(attrs: Mapping[str, Any]) -> int:
    """Returns the bytes of the parts of the most tokens for which K is split, on the SM with the most parts."""
    most = max(split(attrs, sm)[0] for sm in MULTIPROCESSORS)
    needed = 4 * most * MAX_SPLIT_TOKENS * int(attrs["n"]) if most > 1 else 0
    return ceil_div(needed, ALIGNMENT) * ALIGNMENT


def _record_bytes(attrs: Mapping[str, Any]) -> int:
    return RECORD_HEAD + ceil_div(int(attrs["k"]), 16) * 16


def _check(attrs: Mapping[str, Any], inputs: Mapping[str, Tensor], y: Tensor) -> None:
    n, k = attrs["n"], attrs["k"]
    if not 1 <= k <= MAX_K or n < 1:
        raise KernelError(f"quantized_linear: k must be 1 to {MAX_K} and n at least 1; got k {k}, n {n}")
    check_operands("quantized_linear", attrs, inputs, y, 1, "float32")


def _strides(attrs: Mapping[str, Any]) -> dict[str, int]:
    record = _record_bytes(attrs)
    return {"CODES_STRIDE": record, "SCALES_STRIDE": record // 4}


def _pointers(dtypes: Mapping[str, str], *names: str) -> tuple[tuple[str, str], ...]:
    fixed = {"values": "int8", "codes": "int8", "parts": "int32", "scales": "float32", "row_scales": "float32"}
    return pointers({**dtypes, **fixed}, names)


def _round(attrs: Mapping[str, Any], dtypes: Mapping[str, str]) -> KernelSpec:
    wide = attrs["k"] % 16 == 0
    block = min(next_power_of_2(attrs["k"]), COLUMN_BLOCK)
    return KernelSpec(
        kernel="round_rows_kernel",
        module=MODULE,
        signature=(*_pointers(dtypes, "x", "codes", "row_scales"), ("K", "i32")),
        constants=(*_strides(attrs).items(), ("BLOCK", block)),
        aligned=("x", "codes", "row_scales", *(("K",) if wide else ())),
        num_warps=4,
        fp_fusion=False,
    )


def _gemm(attrs: Mapping[str, Any], dtypes: Mapping[str, str], rows: int) -> KernelSpec:
    integers = ("tokens", "N", "K", "row_bytes", "splits", "depth_of_a_split")
    wide = ("K", "row_bytes", "depth_of_a_split") if attrs["k"] % 16 == 0 else ()
    tensors = _pointers(dtypes, "codes", "row_scales", "values", "scales", "bias", "y", "parts")
    sizes = {**_strides(attrs), "DEPTH": DEPTH, "ROWS": rows, "COLUMNS": COLUMNS}
    return KernelSpec(
        kernel="rounded_gemm_kernel",
        module=MODULE,
        signature=(*tensors, *((name, "i32") for name in integers)),
        constants=(*(() if "bias" in dtypes else (("bias", None),)), *sizes.items()),
        aligned=(*(name for name, _ in tensors if name != "scales"), *wide),
        num_warps=WARPS[rows],
        num_stages=STAGES,
        fp_fusion=False,
    )


def _sum(attrs: Mapping[str, Any], dtypes: Mapping[str, str]) -> KernelSpec:
    tensors = _pointers(dtypes, "parts", "row_scales", "scales", "bias", "y")
    wide = ("N",) if attrs["n"] % 16 == 0 else ()
    return KernelSpec(
        kernel="rounded_sum_kernel",
        module=MODULE,
        signature=(*tensors, ("tokens", "i32"), ("N", "i32"), ("splits", "i32")),
        constants=(
            *(() if "bias" in dtypes else (("bias", None),)),
            ("SCALES_STRIDE", _strides(attrs)["SCALES_STRIDE"]),
            ("BLOCK", REDUCE_BLOCK),
        ),
        aligned=(*(name for name, _ in tensors if name != "scales"), *wide),
        num_warps=4,
        fp_fusion=False,
    )
