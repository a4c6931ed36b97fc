"""Computes products of two int8 matrices, w8a8: rows of x are rounded with a scale each, and sums are whole numbers.

A token's row is read twice and written once as int8, with its scale; the product reads a byte for each weight, as the
weight-only product does, and multiplies int8 on tensor cores. Sums are exact, so K may be split anywhere and a token's
result does not depend on how many others there are. The kernels are compiled without contraction, and give the bits
of `linear.py`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tensorwright.plugins.quantized_matmul.gpu_int8 import scale_of, to_int8


@triton.jit
def round_rows_kernel(
    x, codes, row_scales, K, CODES_STRIDE: tl.constexpr, SCALES_STRIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Rounds row program_id(0) of x [tokens, K]. A row with an infinity or a NaN has zeros and a scale of NaN."""
    row = tl.program_id(0).to(tl.int64)
    of_x = x + row * K
    of_codes = codes + row * CODES_STRIDE
    most = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, K, BLOCK):
        k = first + tl.arange(0, BLOCK)
        magnitude = tl.abs(tl.load(of_x + k, mask=k < K, other=0.0).to(tl.float32))
        most = tl.maximum(most, tl.where(magnitude < float("inf"), magnitude, float("inf")))
    scale, inverse, finite = scale_of(tl.max(most, axis=0), 127.0)
    tl.store(row_scales + row * SCALES_STRIDE, scale)
    for first in range(0, K, BLOCK):
        k = first + tl.arange(0, BLOCK)
        value = tl.load(of_x + k, mask=k < K, other=0.0).to(tl.float32)
        tl.store(of_codes + k, to_int8(tl.where(finite, value, 0.0) * inverse), mask=k < K)


@triton.jit
def _finished(total, row_scale, column_scale, bias, columns, inside):
    """Returns whole sums as float32 numbers, with their scales and the bias."""
    made = total.to(tl.float32) * (row_scale * column_scale)
    if bias is not None:
        made += tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)
    return made


@triton.jit
def rounded_gemm_kernel(
    codes, row_scales, values, scales, bias, y, parts, tokens, N, K, row_bytes, splits, depth_of_a_split,
    CODES_STRIDE: tl.constexpr, SCALES_STRIDE: tl.constexpr, DEPTH: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """Program (i, r, s) computes COLUMNS columns for ROWS rows over the elements of K of split s, as values [COLUMNS,
    DEPTH] times codes^T on tensor cores. With several splits, parts [splits, tokens, N] get the sums."""
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    part = tl.program_id(2)
    begin = part * depth_of_a_split
    end = tl.minimum(begin + depth_of_a_split, K)
    inside, known = columns < N, rows < tokens
    rows_of_x = codes + rows.to(tl.int64)[:, None] * CODES_STRIDE
    rows_of_w = values + columns.to(tl.int64)[:, None] * row_bytes
    acc = tl.zeros((COLUMNS, ROWS), tl.int32)
    for first in range(begin, end, DEPTH):
        k = first + tl.arange(0, DEPTH)
        a = tl.load(rows_of_x + k[None, :], mask=known[:, None] & (k < K)[None, :], other=0)
        w = tl.load(rows_of_w + k[None, :], mask=inside[:, None] & (k < K)[None, :], other=0)
        acc = tl.dot(w, tl.trans(a), acc, out_dtype=tl.int32)
    total = tl.trans(acc)
    mask = known[:, None] & inside[None, :]
    at = rows.to(tl.int64)[:, None] * N + columns[None, :]
    if splits > 1:
        tl.store(parts + part.to(tl.int64) * tokens * N + at, total, mask=mask)
    else:
        row_scale = tl.load(row_scales + rows.to(tl.int64) * SCALES_STRIDE, mask=known, other=0.0)[:, None]
        column_scale = tl.load(scales + columns, mask=inside, other=0.0)[None, :]
        made = _finished(total, row_scale, column_scale, bias, columns[None, :], inside[None, :])
        tl.store(y + at, made.to(y.dtype.element_ty), mask=mask)


@triton.jit
def rounded_sum_kernel(
    parts, row_scales, scales, bias, y, tokens, N, splits, SCALES_STRIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Adds parts [splits, tokens, N] and finishes them."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    size = tokens.to(tl.int64) * N
    mask = at < size
    total = tl.zeros((BLOCK,), tl.int32)
    for part in range(splits):
        total += tl.load(parts + part * size + at, mask=mask, other=0)
    columns = at % N
    row_scale = tl.load(row_scales + at // N * SCALES_STRIDE, mask=mask, other=0.0)
    made = _finished(total, row_scale, tl.load(scales + columns, mask=mask, other=0.0), bias, columns, mask)
    tl.store(y + at, made.to(y.dtype.element_ty), mask=mask)
