"""Computes weight-only int4 products: y = x w^T + bias, w as 4-bit integers with a scale for each group along K.

packed [ceil(K / 8), N] int32: element k of row n is bits 4 (k % 8) of word [k / 8, n], two's complement; scales
[ceil(K / group), N]. A weight takes half a byte and 2 / group bytes of its scale. At one token only these count, at N =
K = 4096 and groups of 128 they are 8.7 MB. Words are read along N, 16 bytes per thread.

Integers are exact in float16 and bfloat16, and each group's sum is scaled in float32: the weights are never rounded.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tensorwright.plugins.gpu.unpack import widen_nibbles


@triton.jit
def _nibble(words, j):
    """Returns element j of each word as float32: its bits, with the sign flipped, are the last of 2^23 + value + 8."""
    bits = ((words >> (4 * j)) & 15) ^ 8
    return (bits | 0x4B000000).to(tl.float32, bitcast=True) - 8388616.0


@triton.jit
def store_columns(y, parts, bias, acc, rows, columns, part, splits, tokens, N):
    """Stores acc [rows, columns] with the bias in y [tokens, N], or without it in a part of [splits, tokens, N]."""
    mask = (rows < tokens)[:, None] & (columns < N)[None, :]
    at = rows.to(tl.int64)[:, None] * N + columns[None, :]
    if splits > 1:
        tl.store(parts + part.to(tl.int64) * tokens * N + at, acc, mask=mask)
    else:
        if bias is not None:
            acc += tl.load(bias + columns, mask=columns < N, other=0.0).to(tl.float32)[None, :]
        tl.store(y + at, acc.to(y.dtype.element_ty), mask=mask)


@triton.jit
def int4_gemv_kernel(
    x, packed, scales, bias, y, parts, tokens, N, K, splits, words_of_a_split,
    TOKENS: tl.constexpr, GROUP: tl.constexpr, WORDS: tl.constexpr, COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Program (i, s, r) computes COLUMNS columns from i * COLUMNS, over words from s * words_of_a_split, WORDS rows of
    them at a time, for TOKENS (1, 2, 4) rows of x from r * TOKENS. Each thread keeps its words' sums apart until the
    end, so that the loop exchanges nothing. STAGES - 1 steps of WORDS * COLUMNS * 4 bytes are loaded meanwhile."""
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    part = tl.program_id(1)
    begin = part * words_of_a_split
    words_of_k = (K + 7) // 8
    end = tl.minimum(begin + words_of_a_split, words_of_k)
    acc0 = tl.zeros((WORDS, COLUMNS), tl.float32)
    acc1 = tl.zeros((WORDS, COLUMNS), tl.float32)
    acc2 = tl.zeros((WORDS, COLUMNS), tl.float32)
    acc3 = tl.zeros((WORDS, COLUMNS), tl.float32)
    inside = columns < N
    row = tl.program_id(2) * TOKENS
    last = tokens - 1
    x0 = x + row.to(tl.int64) * K
    x1 = x + tl.minimum(row + 1, last).to(tl.int64) * K
    x2 = x + tl.minimum(row + 2, last).to(tl.int64) * K
    x3 = x + tl.minimum(row + 3, last).to(tl.int64) * K
    for first in tl.range(begin, end, WORDS, num_stages=STAGES):
        at = first + tl.arange(0, WORDS)
        mask = (at < end)[:, None] & inside[None, :]
        words = tl.load(packed + at[:, None] * N + columns[None, :], mask=mask, other=0)
        group = at // (GROUP // 8)
        scale = tl.load(scales + group[:, None] * N + columns[None, :], mask=mask, other=0.0).to(tl.float32)
        sum0 = tl.zeros((WORDS, COLUMNS), tl.float32)
        sum1 = tl.zeros((WORDS, COLUMNS), tl.float32)
        sum2 = tl.zeros((WORDS, COLUMNS), tl.float32)
        sum3 = tl.zeros((WORDS, COLUMNS), tl.float32)
        for j in tl.static_range(8):
            value = _nibble(words, j)
            k = at * 8 + j
            known = (at < end) & (k < K)
            sum0 += tl.load(x0 + k, mask=known, other=0.0).to(tl.float32)[:, None] * value
            if TOKENS > 1:
                sum1 += tl.load(x1 + k, mask=known, other=0.0).to(tl.float32)[:, None] * value
            if TOKENS > 2:
                sum2 += tl.load(x2 + k, mask=known, other=0.0).to(tl.float32)[:, None] * value
                sum3 += tl.load(x3 + k, mask=known, other=0.0).to(tl.float32)[:, None] * value
        acc0 += sum0 * scale
        acc1 += sum1 * scale
        acc2 += sum2 * scale
        acc3 += sum3 * scale
    one = row + tl.arange(0, 1)
    store_columns(y, parts, bias, tl.sum(acc0, 0)[None, :], one, columns, part, splits, tokens, N)
    if TOKENS > 1:
        store_columns(y, parts, bias, tl.sum(acc1, 0)[None, :], one + 1, columns, part, splits, tokens, N)
    if TOKENS > 2:
        store_columns(y, parts, bias, tl.sum(acc2, 0)[None, :], one + 2, columns, part, splits, tokens, N)
        store_columns(y, parts, bias, tl.sum(acc3, 0)[None, :], one + 3, columns, part, splits, tokens, N)


@triton.jit
def int4_gemm_kernel(
    x, packed, scales, bias, y, parts, tokens, N, K, splits, words_of_a_split,
    GROUP: tl.constexpr, DEPTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr,
    WARPS: tl.constexpr,
):  # fmt: skip
    """Program (i, r, s) computes COLUMNS columns for ROWS rows of x over the words of split s; DEPTH elements of K, all
    of one group, at a time on tensor cores, as w [COLUMNS, DEPTH] times x^T.

    Columns and elements of K may be in any order in a product. Here a thread unpacks the words of four columns side by
    side, which it loads as 16 bytes, into the very registers that its tensor core takes: of an operand's row 16 w + 8 r
    + g in 16 W rows of warps, lane 4 g + t holds elements 2 t + b of the first and second eight of 16.
    """
    TILES: tl.constexpr = COLUMNS // (16 * WARPS)
    BLOCKS: tl.constexpr = DEPTH // 32
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    part = tl.program_id(2)
    words_of_k = (K + 7) // 8
    begin = part * words_of_a_split
    end = tl.minimum(begin + words_of_a_split, words_of_k)
    inside = columns < N
    rows_of_x = x + rows.to(tl.int64)[:, None] * K
    acc = tl.zeros((COLUMNS, ROWS), tl.float32)
    element: tl.constexpr = x.dtype.element_ty
    for first in tl.range(begin, end, DEPTH // 8, num_stages=STAGES):
        at = first + tl.arange(0, DEPTH // 8)
        k = first * 8 + tl.arange(0, DEPTH)
        a = tl.load(rows_of_x + k[None, :], mask=(rows < tokens)[:, None] & (k < K)[None, :], other=0.0)
        # Element 4 b + 2 c + h of word 4 m + t, as [m, t, b, c, h], goes to [m, c, h, t, b].
        a = tl.permute(tl.reshape(a, (ROWS, BLOCKS, 4, 2, 2, 2)), (0, 1, 4, 5, 2, 3))
        mask = (at < end)[:, None] & inside[None, :]
        words = tl.load(packed + at[:, None] * N + columns[None, :], mask=mask, other=0)
        first_two = tl.join(widen_nibbles(words, element), widen_nibbles(words >> 4, element))
        last_two = tl.join(widen_nibbles(words >> 8, element), widen_nibbles(words >> 12, element))
        w = tl.join(first_two, last_two)
        # [m, t, w, g, i, r, b, h, c] becomes [i, w, r, g, m, c, h, t, b]
        w = tl.permute(tl.reshape(w, (BLOCKS, 4, WARPS, 8, TILES, 2, 2, 2, 2)), (4, 2, 5, 3, 0, 8, 7, 1, 6))
        scale = tl.load(scales + first // (GROUP // 8) * N + columns, mask=inside, other=0.0).to(tl.float32)
        scale = tl.permute(tl.reshape(scale, (WARPS, 8, TILES, 2)), (2, 0, 3, 1))
        product = tl.dot(tl.reshape(w, (COLUMNS, DEPTH)), tl.trans(tl.reshape(a, (ROWS, DEPTH))))
        acc += product * tl.reshape(scale, (COLUMNS,))[:, None]
    acc = tl.permute(tl.reshape(acc, (TILES, WARPS, 2, 8, ROWS)), (4, 1, 3, 0, 2))
    store_columns(y, parts, bias, tl.reshape(acc, (ROWS, COLUMNS)), rows, columns, part, splits, tokens, N)


@triton.jit
def int4_reduce_kernel(parts, bias, y, tokens, N, splits, BLOCK: tl.constexpr):
    """Computes y, the sum of parts [splits, tokens, N] float32, first to last, with the bias."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    size = tokens.to(tl.int64) * N
    mask = at < size
    acc = tl.zeros((BLOCK,), tl.float32)
    for part in range(splits):
        acc += tl.load(parts + part * size + at, mask=mask, other=0.0)
    if bias is not None:
        acc += tl.load(bias + at % N, mask=mask, other=0.0).to(tl.float32)
    tl.store(y + at, acc.to(y.dtype.element_ty), mask=mask)


@triton.jit
def int4_dequantize_kernel(packed, scales, w, columns, N, K, GROUP: tl.constexpr, COLUMNS: tl.constexpr):
    """Stores the first `columns` rows of w [N, K], each number rounded once to w's type.

    Program (i, g) makes elements g * GROUP ... of COLUMNS rows. Words are read along N and elements stored along K.
    """
    WORDS: tl.constexpr = GROUP // 8
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    at = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    inside = column < columns
    mask = (at * 8 < K)[:, None] & inside[None, :]
    words = tl.load(packed + at[:, None] * N + column[None, :], mask=mask, other=0)
    element: tl.constexpr = w.dtype.element_ty
    first_two = tl.join(widen_nibbles(words, element), widen_nibbles(words >> 4, element))
    last_two = tl.join(widen_nibbles(words >> 8, element), widen_nibbles(words >> 12, element))
    # Element 4 b + 2 c + h of a word is at [b, h, c].
    values = tl.permute(tl.join(first_two, last_two), (1, 0, 2, 4, 3))
    values = tl.reshape(values, (COLUMNS, GROUP)).to(tl.float32)
    scale = tl.load(scales + tl.program_id(1) * N + column, mask=inside, other=0.0).to(tl.float32)
    k = tl.program_id(1) * GROUP + tl.arange(0, GROUP)
    to = w + column.to(tl.int64)[:, None] * K + k[None, :]
    tl.store(to, (values * scale[:, None]).to(element), mask=inside[:, None] & (k < K)[None, :])
