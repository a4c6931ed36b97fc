"""Chooses the experts of each row and their weights. A program takes one row, with all experts in registers.

The experts lie as [groups, experts of a group], both rounded up to powers of two, so that groups need no other code.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _largest(x):
    return tl.max(tl.max(x, axis=1), axis=0)


@triton.jit
def _total(x):
    return tl.sum(tl.sum(x, axis=1), axis=0)


@triton.jit
def _without_groups(
    choice, inside, at, GROUPS: tl.constexpr, GROUP_BLOCK: tl.constexpr, BLOCK: tl.constexpr,
    LIMIT: tl.constexpr, BEST: tl.constexpr, KEEPS_OTHERS: tl.constexpr,
):  # fmt: skip
    """Returns `choice` [GROUP_BLOCK, BLOCK] with minus infinity or 0 in the groups that do not count."""
    lowest = -float("inf")
    known = tl.where(inside, choice, lowest)
    best = tl.max(known, axis=1)
    if BEST == 2:
        first = tl.min(tl.where(inside & (known == best[:, None]), at, GROUP_BLOCK * BLOCK), axis=1)
        best += tl.max(tl.where(at == first[:, None], lowest, known), axis=1)
    group = tl.arange(0, GROUP_BLOCK)
    waits = group < GROUPS
    for _ in tl.static_range(LIMIT):
        largest = tl.max(tl.where(waits, best, lowest), axis=0)
        taken = tl.min(tl.where(waits & (best == largest), group, GROUP_BLOCK), axis=0)
        waits = waits & (group != taken)
    counts = (group < GROUPS) & (waits == 0)
    return tl.where(counts[:, None], choice, 0.0 if KEEPS_OTHERS else lowest)


@triton.jit
def route_kernel(
    logits, bias, expert_scales, index, weights, scale, epsilon, least,
    E: tl.constexpr, K: tl.constexpr, K_BLOCK: tl.constexpr, GROUPS: tl.constexpr, GROUP_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr, GROUP_LIMIT: tl.constexpr, GROUP_BEST: tl.constexpr, KEEPS_OTHERS: tl.constexpr,
    SIGMOID: tl.constexpr, BY_SCORES: tl.constexpr, NORMALISE: tl.constexpr, OF_CHOSEN: tl.constexpr,
):  # fmt: skip
    """Computes index and weights [T, K] of logits [T, E], as plugins/route/op.py defines them.

    OF_CHOSEN: the weights are the softmax of the chosen logits, which is what the softmax of all becomes once divided
    by its sum. A NaN counts as infinity when experts are chosen.
    """
    row = tl.program_id(0).to(tl.int64)
    group = tl.arange(0, GROUP_BLOCK)[:, None]
    place = tl.arange(0, BLOCK)[None, :]
    inside = (group < GROUPS) & (place < E // GROUPS)
    at = group * (E // GROUPS) + place
    logit = tl.load(logits + row * E + at, mask=inside, other=-float("inf")).to(tl.float32)
    if SIGMOID:
        score = 1.0 / (1.0 + tl.exp(-logit))
    else:
        terms = tl.exp(logit - _largest(logit))
        score = terms / _total(terms)
    choice = score if BY_SCORES else logit
    if bias is not None:
        choice += tl.load(bias + at, mask=inside, other=0.0)
    choice = tl.where(choice == choice, choice, float("inf"))
    if GROUPS > 1:
        choice = _without_groups(choice, inside, at, GROUPS, GROUP_BLOCK, BLOCK, GROUP_LIMIT, GROUP_BEST, KEEPS_OTHERS)
    waits = inside
    slot = tl.arange(0, K_BLOCK)
    chosen = tl.zeros((K_BLOCK,), tl.int32)
    value = tl.full((K_BLOCK,), -float("inf") if OF_CHOSEN else 0.0, tl.float32)
    weigh = logit if OF_CHOSEN else score
    for number in range(K):
        largest = _largest(tl.where(waits, choice, -float("inf")))
        best = tl.min(tl.min(tl.where(waits & (choice == largest), at, E), axis=1), axis=0)
        waits = waits & (at != best)
        chosen = tl.where(slot == number, best, chosen)
        value = tl.where(slot == number, _total(tl.where(at == best, tl.where(inside, weigh, 0.0), 0.0)), value)
    if OF_CHOSEN:
        value = tl.exp(value - tl.max(value, axis=0))
        value = value / tl.sum(value, axis=0)
    elif NORMALISE:
        value = value / (tl.maximum(tl.sum(value, axis=0), least) + epsilon)
    value = value * scale
    kept = slot < K
    if expert_scales is not None:
        value *= tl.load(expert_scales + chosen, mask=kept, other=0.0)
    tl.store(index + row * K + slot, chosen, mask=kept)
    tl.store(weights + row * K + slot, value, mask=kept)
