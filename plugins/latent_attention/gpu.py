"""Makes the rows of q for attention over latents, and writes the latent rows of K into the pages.

A program takes one head of q of one token, and one more program of each token the row of K: L columns that are copied,
and P that rotate. The kernel is compiled without contraction: products are rounded before they are added, as in the
definition.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _write_row(
    latent, rest, angles, to, written, L: tl.constexpr, P: tl.constexpr, ROTATES: tl.constexpr,
    L_BLOCK: tl.constexpr, P_BLOCK: tl.constexpr,
):  # fmt: skip
    """Writes `latent` [L], then `rest` [P], rotated if ROTATES; P_BLOCK holds P, or half of it if that rotates."""
    kind: tl.constexpr = to.dtype.element_ty
    at = tl.arange(0, L_BLOCK)
    mask = written & (at < L)
    tl.store(to + at, tl.load(latent + at, mask=mask, other=0.0).to(kind), mask=mask)
    if P > 0:
        column = tl.arange(0, P_BLOCK)
        if ROTATES:
            HALF: tl.constexpr = P // 2
            mask = written & (column < HALF)
            first = tl.load(rest + column, mask=mask, other=0.0).to(tl.float32)
            second = tl.load(rest + HALF + column, mask=mask, other=0.0).to(tl.float32)
            cos = tl.load(angles + column, mask=mask, other=0.0)
            sin = tl.load(angles + HALF + column, mask=mask, other=0.0)
            tl.store(to + L + column, (first * cos - second * sin).to(kind), mask=mask)
            tl.store(to + L + HALF + column, (second * cos + first * sin).to(kind), mask=mask)
        else:
            mask = written & (column < P)
            tl.store(to + L + column, tl.load(rest + column, mask=mask, other=0.0).to(kind), mask=mask)


@triton.jit
def latent_kv_write_kernel(
    q_latent, q, kv, table, slots, y, k_pages, H: tl.constexpr, S: tl.constexpr, L: tl.constexpr, P: tl.constexpr,
    ROTATES: tl.constexpr, L_BLOCK: tl.constexpr, P_BLOCK: tl.constexpr,
):  # fmt: skip
    """q_latent [T, H L], q [T, H S], kv [T, L + P], table [T, P] float32, slots [T], y [T, H (L + P)], k_pages
    [slots of all pages, L + P]. The grid is: tokens, H + 1. A slot below 0 is not written."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    D: tl.constexpr = L + P
    angles = table
    if ROTATES:
        angles = table + token * P
    if head < H:
        place = token * H + head
        rest = q + place * S + (S - P)
        _write_row(q_latent + place * L, rest, angles, y + place * D, head >= 0, L, P, ROTATES, L_BLOCK, P_BLOCK)
    else:
        slot = tl.load(slots + token)
        row = kv + token * D
        to = k_pages + slot.to(tl.int64) * D
        _write_row(row, row + L, angles, to, slot >= 0, L, P, ROTATES, L_BLOCK, P_BLOCK)
