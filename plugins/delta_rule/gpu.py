"""Computes the gated delta rule over ragged sequences, token after token in float32: a program takes P_BLOCK columns of
one head of one sequence, whose states lie in registers. The columns of a state do not depend on one another."""

from __future__ import annotations

import triton
import triton.language as tl

from tensorwright.plugins.elementwise.gpu import activate
from tensorwright.plugins.gpu.sequences import sequence_of


@triton.jit
def carried_delta_rule_kernel(
    row, dt, beta, w, seq_starts, context_lens, state_slots, states, y, beta_scale, scale, epsilon, HEADS: tl.constexpr,
    KEY_HEADS: tl.constexpr, K: tl.constexpr, P: tl.constexpr, PER_KEY: tl.constexpr, SLOT: tl.constexpr,
    K_BLOCK: tl.constexpr, P_BLOCK: tl.constexpr,
):  # fmt: skip
    """The grid is: sequences, HEADS, P / P_BLOCK. row [T, 2 KEY_HEADS K + HEADS P] holds q, k and v, y [T, HEADS P];
    dt [T, HEADS], or [T, HEADS K] if PER_KEY, beta [T, HEADS], w [HEADS]; a state is [HEADS, K, P].
    scale: 1 / sqrt(K)."""
    start, count, at, carried = sequence_of(tl.program_id(0), seq_starts, context_lens, state_slots, SLOT)
    if count == 0:
        return
    head = tl.program_id(1)
    key_head = head // (HEADS // KEY_HEADS)
    k = tl.arange(0, K_BLOCK)
    p = tl.program_id(2) * P_BLOCK + tl.arange(0, P_BLOCK)
    some = k < K
    inside = p < P
    mask = some[:, None] & inside[None, :]
    own = states + at + (head * K + k)[:, None] * P + p[None, :]
    h = tl.load(own, mask=mask & carried, other=0.0)
    rate_of_decay = -tl.exp(tl.load(w + head))
    WIDE: tl.constexpr = 2 * KEY_HEADS * K + HEADS * P
    for t in range(count):
        own_row = row + (start + t) * WIDE
        query = tl.load(own_row + key_head * K + k, mask=some, other=0.0).to(tl.float32)
        key = tl.load(own_row + (KEY_HEADS + key_head) * K + k, mask=some, other=0.0).to(tl.float32)
        value = tl.load(own_row + 2 * KEY_HEADS * K + head * P + p, mask=inside, other=0.0).to(tl.float32)
        query = query / tl.sqrt(tl.sum(query * query, 0) + epsilon) * scale
        key = key / tl.sqrt(tl.sum(key * key, 0) + epsilon)
        place = (start + t) * HEADS + head
        rate = beta_scale * activate(tl.load(beta + place).to(tl.float32), "sigmoid")
        if PER_KEY:
            step = activate(tl.load(dt + place * K + k, mask=some, other=0.0).to(tl.float32), "softplus")
            h = tl.exp(rate_of_decay * step)[:, None] * h
        else:
            step = activate(tl.load(dt + place).to(tl.float32), "softplus")
            h = tl.exp(rate_of_decay * step) * h
        change = rate * (value - tl.sum(key[:, None] * h, 0))
        h = h + key[:, None] * change[None, :]
        result = tl.sum(query[:, None] * h, 0)
        tl.store(y + place * P + p, result.to(y.dtype.element_ty), mask=inside)
    tl.debug_barrier()  # every thread has read the state before any writes it
    tl.store(own, h, mask=mask)
