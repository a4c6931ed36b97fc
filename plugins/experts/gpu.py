"""Computes a mixture of experts: pairs of a token and a slot are sorted by expert, multiplied in tiles, and summed.

A pair is the number t K + s of token t and slot s. `order` lists the pairs of expert 0, then those of expert 1, and so
on; `starts` [E + 1] says where each expert's begin. A tile is ROWS pairs of one expert, so that a matrix is read once
for each tile. Which tiles there are is known on the GPU alone: the grid is a bound, and programs beyond it end at once.
No sum depends on the order of pairs, so that a row's result does not depend on the rows beside it, but for the tile's
size. What lies between the products, and what each slot gives, are rounded to the activation type. Matrices may be
quantized: gpu_rows.py of quantized_matmul has their forms.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tensorwright.plugins.elementwise.gpu import activate
from tensorwright.plugins.quantized_matmul.gpu_rows import add_product, in_scale, load_weights, scales_of


@triton.jit
def expert_order_kernel(
    index, starts, order, pairs, E: tl.constexpr, FIRST: tl.constexpr, ORDER_STRIDE: tl.constexpr, BLOCK: tl.constexpr
):
    """Program e of E + 1 stores starts[e], and the pairs of expert e in order[starts[e] ...], lowest first.

    Experts have the numbers FIRST to FIRST + E - 1 in index [pairs]; others are in no list. Entries of `order` are
    ORDER_STRIDE elements apart.
    """
    expert = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    before = 0
    for first in range(0, pairs, BLOCK):
        number = tl.load(index + first + at, mask=first + at < pairs, other=-1) - FIRST
        own = (first + at < pairs) & (number >= 0) & (number < E)
        before += tl.sum((own & (number < expert)).to(tl.int32), axis=0)
    tl.store(starts + expert, before)
    if expert < E:
        for first in range(0, pairs, BLOCK):
            number = tl.load(index + first + at, mask=first + at < pairs, other=-1) - FIRST
            match = (first + at < pairs) & (number == expert)
            ones = match.to(tl.int32)
            place = before + tl.cumsum(ones, axis=0) - 1
            tl.store(order + place.to(tl.int64) * ORDER_STRIDE, first + at, mask=match)
            before += tl.sum(ones, axis=0)


@triton.jit
def _tile(
    starts, order, number, E: tl.constexpr, E_BLOCK: tl.constexpr, ORDER_STRIDE: tl.constexpr, ROWS: tl.constexpr
):
    """Returns (expert, pairs, which of them there are) of tile `number`; expert is E if there is no such tile."""
    at = tl.arange(0, E_BLOCK)
    begins = tl.load(starts + at, mask=at < E, other=0)
    tiles = (tl.load(starts + 1 + at, mask=at < E, other=0) - begins + ROWS - 1) // ROWS
    ends = tl.cumsum(tiles, axis=0)
    expert = tl.sum(((ends <= number) & (at < E)).to(tl.int32), axis=0)
    earlier = tl.sum(tl.where(at < expert, tiles, 0), axis=0)
    known = expert < E
    begin = tl.load(starts + expert, mask=known, other=0) + (number - earlier) * ROWS
    end = tl.load(starts + expert + 1, mask=known, other=0)
    row = begin + tl.arange(0, ROWS)
    valid = row < end
    return expert, tl.load(order + row.to(tl.int64) * ORDER_STRIDE, mask=valid, other=0), valid


@triton.jit
def _sloped(x, slope, ACTIVATION: tl.constexpr, SLOPED: tl.constexpr):
    return x / (1.0 + tl.exp(-slope * x)) if SLOPED else activate(x, ACTIVATION)


@triton.jit
def experts_up_kernel(
    x, weights, up, scales, bias, starts, order, inner, slope, limit, up_offset,
    E: tl.constexpr, E_BLOCK: tl.constexpr, K: tl.constexpr, H: tl.constexpr, INNER: tl.constexpr,
    ORDER_STRIDE: tl.constexpr, INNER_STRIDE: tl.constexpr, ACTIVATION: tl.constexpr, SLOPED: tl.constexpr,
    GATED: tl.constexpr, SQUARED: tl.constexpr, LIMITED: tl.constexpr, LIMITS_ACTIVATED: tl.constexpr,
    FORM: tl.constexpr, GROUP: tl.constexpr, ROW: tl.constexpr, GROUPS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Program (b, c) computes COLUMNS columns of inner [pairs, INNER] for the pairs of tile b: the gate of up x + bias.

    x [T, H], up [E, 2 INNER, ROW] with the gate's rows first, or [E, INNER, ROW], and scales of GROUPS columns; bias
    likewise, float32, or absent.
    weights [T, K] are multiplied into x unless they are absent.
    """
    expert, pair, valid = _tile(starts, order, tl.program_id(0), E, E_BLOCK, ORDER_STRIDE, ROWS)
    if expert == E:
        return
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < INNER
    element: tl.constexpr = x.dtype.element_ty
    matrix = expert.to(tl.int64) * ((2 if GATED else 1) * INNER)
    rows_of_x = x + (pair // K).to(tl.int64)[:, None] * H
    rows_of_w = up + (matrix + column)[:, None] * ROW
    first_scales = scales_of(scales, matrix + column, GROUPS)
    second_scales = scales_of(scales, matrix + INNER + column, GROUPS)
    if weights is not None:
        share = tl.load(weights + pair, mask=valid, other=0.0)
    first = tl.zeros((COLUMNS, ROWS), tl.float32)
    second = tl.zeros((COLUMNS, ROWS), tl.float32)
    for begin in range(0, H, DEPTH):
        k = begin + tl.arange(0, DEPTH)
        a = tl.load(rows_of_x + k[None, :], mask=valid[:, None] & (k < H)[None, :], other=0.0)
        if weights is not None:
            a = (a.to(tl.float32) * share[:, None]).to(element)
        a = tl.trans(a)
        w = load_weights(rows_of_w, begin, inside, H, FORM, COLUMNS, DEPTH, element)
        first = add_product(first, w, a, first_scales, begin, inside, GROUP)
        if GATED:
            w = load_weights(rows_of_w + INNER * ROW, begin, inside, H, FORM, COLUMNS, DEPTH, element)
            second = add_product(second, w, a, second_scales, begin, inside, GROUP)
    first = in_scale(first, first_scales, inside, FORM, GROUP)
    if GATED:
        second = in_scale(second, second_scales, inside, FORM, GROUP)
    if bias is not None:
        first += tl.load(bias + matrix + column, mask=inside, other=0.0)[:, None]
        if GATED:
            second += tl.load(bias + matrix + INNER + column, mask=inside, other=0.0)[:, None]
    if LIMITED and not LIMITS_ACTIVATED:
        first = tl.minimum(first, limit)
    y = _sloped(first, slope, ACTIVATION, SLOPED)
    if LIMITED and LIMITS_ACTIVATED:
        y = tl.minimum(y, limit)
    if GATED:
        if LIMITED:
            second = tl.minimum(tl.maximum(second, -limit), limit)
        y = y * (second + up_offset)
    if SQUARED:
        y = y * y
    place = pair.to(tl.int64)[None, :] * INNER_STRIDE + column[:, None]
    tl.store(inner + place, y.to(element), mask=inside[:, None] & valid[None, :])


@triton.jit
def experts_down_kernel(
    inner, weights, down, scales, bias, starts, order, parts,
    E: tl.constexpr, E_BLOCK: tl.constexpr, H: tl.constexpr, INNER: tl.constexpr, ORDER_STRIDE: tl.constexpr,
    INNER_STRIDE: tl.constexpr, PARTS_STRIDE: tl.constexpr, FORM: tl.constexpr, GROUP: tl.constexpr,
    ROW: tl.constexpr, GROUPS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Program (b, c) computes COLUMNS columns of parts [pairs, H] for the pairs of tile b: the pair's weight times
    (down inner + bias). down [E, H, ROW], and scales of GROUPS columns; bias [E, H] float32 may be absent, and
    so may weights [T, K], 1 then.
    """
    expert, pair, valid = _tile(starts, order, tl.program_id(0), E, E_BLOCK, ORDER_STRIDE, ROWS)
    if expert == E:
        return
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < H
    wide = pair.to(tl.int64)
    element: tl.constexpr = inner.dtype.element_ty
    rows_of_w = down + (expert.to(tl.int64) * H + column)[:, None] * ROW
    row_scales = scales_of(scales, expert.to(tl.int64) * H + column, GROUPS)
    acc = tl.zeros((COLUMNS, ROWS), tl.float32)
    for begin in range(0, INNER, DEPTH):
        k = begin + tl.arange(0, DEPTH)
        a = tl.load(
            inner + wide[:, None] * INNER_STRIDE + k[None, :], mask=valid[:, None] & (k < INNER)[None, :], other=0.0
        )
        w = load_weights(rows_of_w, begin, inside, INNER, FORM, COLUMNS, DEPTH, element)
        acc = add_product(acc, w, tl.trans(a), row_scales, begin, inside, GROUP)
    acc = in_scale(acc, row_scales, inside, FORM, GROUP)
    if bias is not None:
        acc += tl.load(bias + expert * H + column, mask=inside, other=0.0)[:, None]
    if weights is not None:
        acc *= tl.load(weights + pair, mask=valid, other=0.0)[None, :]
    place = wide[None, :] * PARTS_STRIDE + column[:, None]
    tl.store(parts + place, acc.to(parts.dtype.element_ty), mask=inside[:, None] & valid[None, :])


@triton.jit
def experts_sum_kernel(
    x, index, weights, parts, y,
    E: tl.constexpr, FIRST: tl.constexpr, IDENTITIES: tl.constexpr, K: tl.constexpr, H: tl.constexpr,
    PARTS_STRIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Computes y [T, H], the sum of a token's parts from the first slot to the last. An expert with one of the
    IDENTITIES numbers from FIRST + E on gives the token's row of x times the slot's weight, and others nothing."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < H
    acc = tl.zeros((BLOCK,), tl.float32)
    for slot in range(K):
        number = tl.load(index + row * K + slot) - FIRST
        own = (number >= 0) & (number < E)
        acc += tl.load(parts + (row * K + slot) * PARTS_STRIDE + column, mask=inside & own, other=0.0).to(tl.float32)
        if IDENTITIES:
            same = (number >= E) & (number < E + IDENTITIES)
            value = tl.load(x + row * H + column, mask=inside & same, other=0.0).to(tl.float32)
            acc += value * tl.load(weights + row * K + slot)
    tl.store(y + row * H + column, acc.to(y.dtype.element_ty), mask=inside)
