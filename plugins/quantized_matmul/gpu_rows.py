"""Loads rows of stored weights, in any of their forms, as an operand of products on tensor cores, and adds products up.

    float   the activation type
    int8    bytes, with a scale for each row and group of K
    int4    two integers in a byte, the first of two neighbours along K in the lower half; scales as for int8
    fp8     the bytes of E4M3, with one scale for each row

All of these are exact in the types of the tensor cores (gpu_bytes.py says why). A group's sum is scaled in float32, so
that weights are never rounded. A tile is COLUMNS rows of weights by DEPTH elements of K, all of one group.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tensorwright.plugins.quantized_matmul.gpu_bytes import widen_bytes


@triton.jit
def load_weights(
    rows, first, inside, K, FORM: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, kind: tl.constexpr
):
    """Returns [COLUMNS, DEPTH] of type `kind`: elements [first, first + DEPTH) of each row, 0 from K on, and for rows
    that are not `inside`. rows: [COLUMNS, 1], pointers to where each begins. E4M3 numbers are divided by 256."""
    if FORM == "int4":
        byte = first // 2 + tl.arange(0, DEPTH // 2)
        mask = inside[:, None] & (2 * byte < K)[None, :]
        codes = tl.load(rows + byte[None, :], mask=mask, other=0).to(tl.int32)
        w = tl.reshape(tl.join((codes << 28) >> 28, codes >> 4), (COLUMNS, DEPTH)).to(kind)
    else:
        k = first + tl.arange(0, DEPTH)
        mask = inside[:, None] & (k < K)[None, :]
        if FORM == "float":
            w = tl.load(rows + k[None, :], mask=mask, other=0.0)
        else:
            w = widen_bytes(tl.load(rows + k[None, :], mask=mask, other=0), FORM == "fp8", kind)
    return w


@triton.jit
def scales_of(scales, rows, GROUPS: tl.constexpr):
    """Returns pointers to the first scale of each of these rows, or anything if weights have none."""
    if scales is not None:
        rows = scales + rows * GROUPS
    return rows


@triton.jit
def add_product(acc, w, x, scales, first, inside, GROUP: tl.constexpr):
    """Returns acc + w x, w [COLUMNS, DEPTH], x [DEPTH, ROWS], times the group's scale if there are groups."""
    if GROUP > 0:
        scale = tl.load(scales + first // GROUP, mask=inside, other=0.0).to(tl.float32)
        acc += tl.dot(w, x, input_precision="ieee") * scale[:, None]
    else:
        acc = tl.dot(w, x, acc, input_precision="ieee")
    return acc


@triton.jit
def in_scale(acc, scales, inside, FORM: tl.constexpr, GROUP: tl.constexpr):
    """Returns the whole sums over K, times the scale of each row if there is one for the whole row."""
    if FORM != "float":
        if GROUP == 0:
            acc *= tl.load(scales, mask=inside, other=0.0).to(tl.float32)[:, None]
        if FORM == "fp8":
            acc *= 256.0
    return acc
