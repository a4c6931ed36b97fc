"""Computes weight-only products of 8 bits: y = x w^T + bias, w as int8 or E4M3 numbers with a scale per group of K.

values [N, S]: a row of w, S >= K bytes, is a row of the checkpoint's matrix; scales [N, groups]. A weight takes one
byte and 2 / group bytes of its scale. Rows are read along K, 16 bytes per thread, with DEPTH elements at once.

Weights are exact in the types of the tensor cores: 8-bit integers are in float16 and bfloat16, and so are the bits of
E4M3 as those of a float16 that is 256 times smaller. Each group's sum is scaled in float32: weights are never rounded.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tensorwright.plugins.quantized_matmul.gpu import store_columns


@triton.jit
def widen_bytes(codes, E4M3: tl.constexpr, kind: tl.constexpr):
    """Returns bytes, as int8, in the float type `kind`: integers, or E4M3 numbers divided by 256, which has no NaN."""
    if E4M3:
        bits = codes.to(tl.int16)
        half = ((bits & 0x7F) << 7) | (bits & -32768)  # the sign was extended from the byte
        value = half.to(tl.float16, bitcast=True).to(kind)
    else:
        value = codes.to(kind)
    return value


@triton.jit
def bytes_gemm_kernel(
    x, values, scales, bias, y, parts, tokens, N, K, row_bytes, groups, splits, depth_of_a_split,
    GROUP: tl.constexpr, E4M3: tl.constexpr, DEPTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Program (i, r, s) computes COLUMNS columns for ROWS rows of x over the elements of K of split s, as w [COLUMNS,
    DEPTH] times x^T on tensor cores. DEPTH divides GROUP; GROUP 0 means one scale for each row of w."""
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    part = tl.program_id(2)
    begin = part * depth_of_a_split
    end = tl.minimum(begin + depth_of_a_split, K)
    inside = columns < N
    known = rows < tokens
    rows_of_x = x + rows.to(tl.int64)[:, None] * K
    rows_of_w = values + columns.to(tl.int64)[:, None] * row_bytes
    row_scales = scales + columns * groups
    element: tl.constexpr = x.dtype.element_ty
    acc = tl.zeros((COLUMNS, ROWS), tl.float32)
    for first in range(begin, end, DEPTH):
        k = first + tl.arange(0, DEPTH)
        a = tl.load(rows_of_x + k[None, :], mask=known[:, None] & (k < K)[None, :], other=0.0)
        codes = tl.load(rows_of_w + k[None, :], mask=inside[:, None] & (k < K)[None, :], other=0)
        w = widen_bytes(codes, E4M3, element)
        if GROUP:
            scale = tl.load(row_scales + first // GROUP, mask=inside, other=0.0).to(tl.float32)
            acc += tl.dot(w, tl.trans(a), input_precision="ieee") * scale[:, None]
        else:
            acc = tl.dot(w, tl.trans(a), acc, input_precision="ieee")
    if not GROUP:
        acc *= tl.load(row_scales, mask=inside, other=0.0).to(tl.float32)[:, None]
    if E4M3:
        acc *= 256.0
    store_columns(y, parts, bias, tl.trans(acc), rows, columns, part, splits, tokens, N)
