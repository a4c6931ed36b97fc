"""Draws tokens from rows of logits, in four kernels, as plugins/draw_tokens/op.py defines it.

A row is cut into chunks of BLOCK columns. Three kernels have a program for each chunk of each row:
  maxima   the largest logit of a chunk, and its first place
  sums     the number and the weight of a chunk's scores, within each level of the row's largest
  gather   moves the scores of the level that suffices to one list of the row
and the last one, which has a program for each row, draws. Sums are of integers, so that the order of additions does not
matter. Places in an order are found by bisection over sums of weights, since nothing is sorted.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tensorwright.plugins.draw_tokens.op import DRAWN, FIELDS, FUZZ, GREEDY, LOG2E, STEP, TAYLOR

_STEP: tl.constexpr = tl.constexpr(STEP)
_FUZZ: tl.constexpr = tl.constexpr(FUZZ)
_LOG2E_HIGH: tl.constexpr = tl.constexpr(LOG2E[0])
_LOG2E_LOW: tl.constexpr = tl.constexpr(LOG2E[1])
_ONE: tl.constexpr = tl.constexpr(2**32 - 1)
_C1: tl.constexpr = tl.constexpr(TAYLOR[0])
_C2: tl.constexpr = tl.constexpr(TAYLOR[1])
_C3: tl.constexpr = tl.constexpr(TAYLOR[2])
_C4: tl.constexpr = tl.constexpr(TAYLOR[3])
_C5: tl.constexpr = tl.constexpr(TAYLOR[4])
_C6: tl.constexpr = tl.constexpr(TAYLOR[5])
_C7: tl.constexpr = tl.constexpr(TAYLOR[6])
_C8: tl.constexpr = tl.constexpr(TAYLOR[7])
_C9: tl.constexpr = tl.constexpr(TAYLOR[8])
_C10: tl.constexpr = tl.constexpr(TAYLOR[9])
_MODE: tl.constexpr = tl.constexpr(FIELDS.index("mode"))
_TEMPERATURE: tl.constexpr = tl.constexpr(FIELDS.index("temperature"))
_TOP_K: tl.constexpr = tl.constexpr(FIELDS.index("top_k"))
_UNIFORM: tl.constexpr = tl.constexpr(FIELDS.index("uniform"))
_KEPT_SHARE: tl.constexpr = tl.constexpr(FIELDS.index("kept_share"))
_DISTANCE: tl.constexpr = tl.constexpr(FIELDS.index("distance"))
_GREEDY: tl.constexpr = tl.constexpr(GREEDY)
_DRAWN: tl.constexpr = tl.constexpr(DRAWN)


@triton.jit
def _distances(largest, scores):
    """Returns how far scores are below the largest, times 2^34."""
    high = largest - scores
    part = high - largest
    low = (largest - (high - part)) - (scores + part)
    near = high < 40.0
    whole = tl.where(near, high, 40.0) * 17179869184.0
    rest = tl.where(near, low, 0.0) * 17179869184.0
    return whole.to(tl.int64) + rest.to(tl.int64)


@triton.jit
def _times(p, fraction, c: tl.constexpr):
    """Returns c - p * fraction, of numbers times 2^32."""
    product = (p.to(tl.uint64) * fraction.to(tl.uint64)) >> 32
    return tl.full(p.shape, c, tl.uint32) - product.to(tl.uint32)


@triton.jit
def _weights(x):
    """Returns 2^44 exp(-x / 2^34)."""
    t = ((x * _LOG2E_HIGH) >> 25) + ((x * _LOG2E_LOW) >> 48)
    fraction = (t & 4294967295).to(tl.uint32)
    p = _times(tl.full(x.shape, _C10, tl.uint32), fraction, _C9)
    p = _times(p, fraction, _C8)
    p = _times(p, fraction, _C7)
    p = _times(p, fraction, _C6)
    p = _times(p, fraction, _C5)
    p = _times(p, fraction, _C4)
    p = _times(p, fraction, _C3)
    p = _times(p, fraction, _C2)
    p = _times(p, fraction, _C1)
    p = _times(p, fraction, _ONE)
    return ((p.to(tl.uint64) << 12) >> (t >> 32).to(tl.uint64)).to(tl.int64)


@triton.jit
def _share_of(total, share):
    """Returns a share, times 2^31, of a sum."""
    return (total >> 31) * share + (((total & 2147483647) * share) >> 31)


@triton.jit
def _slack(total, V: tl.constexpr):
    return (total >> 25) + 4 * V


@triton.jit
def _reach(largest, level, LEVELS: tl.constexpr):
    """Returns the lowest score of levels."""
    return tl.where(level == LEVELS - 1, -3.4028234663852886e38, largest - (level + 1).to(tl.float32) * _STEP)


@triton.jit
def _largest(maxima, row, CHUNKS: tl.constexpr, CHUNK_BLOCK: tl.constexpr):
    """Returns the largest logit of a row: infinity if the row has a NaN."""
    chunk = tl.arange(0, CHUNK_BLOCK)
    part = tl.load(maxima + row * CHUNKS + chunk, mask=chunk < CHUNKS, other=-float("inf"))
    return tl.max(part, axis=0)


@triton.jit
def _temperature(draws, row, FIELDS: tl.constexpr):
    return tl.load(draws + row * FIELDS + _TEMPERATURE).to(tl.float32, bitcast=True)


@triton.jit
def _top_k(draws, row, V: tl.constexpr, FIELDS: tl.constexpr):
    """Returns how many scores stay at least; 0 for all."""
    top_k = tl.load(draws + row * FIELDS + _TOP_K)
    return tl.where(top_k < V, top_k, 0)


@triton.jit
def _level(counts, sums, draws, largest, row, V: tl.constexpr, FIELDS: tl.constexpr, CHUNKS: tl.constexpr,
           CHUNK_BLOCK: tl.constexpr, LEVELS: tl.constexpr):  # fmt: skip
    """Returns the first level that holds all that can stay, the number of its scores, and the weight of the row."""
    top_k = _top_k(draws, row, V, FIELDS)
    kept_share = tl.load(draws + row * FIELDS + _KEPT_SHARE)
    distance = tl.load(draws + row * FIELDS + _DISTANCE)
    chunk = tl.arange(0, CHUNK_BLOCK)[:, None]
    level = tl.arange(0, LEVELS)
    at = (row * CHUNKS + chunk) * LEVELS + level[None, :]
    count = tl.sum(tl.load(counts + at, mask=chunk < CHUNKS, other=0), axis=0)
    weight = tl.sum(tl.load(sums + at, mask=chunk < CHUNKS, other=0), axis=0)
    total = tl.max(weight, axis=0)
    limit = _share_of(total, kept_share) + _slack(total, V)
    far = _distances(largest, _reach(largest, level, LEVELS)) > (distance.to(tl.int64) << 8) + _FUZZ
    enough = tl.where(top_k > 0, count >= top_k, tl.where(kept_share >= 0, weight >= limit, far))
    first = tl.min(tl.where(enough, level, LEVELS - 1), axis=0)
    return first, tl.sum(tl.where(level == first, count, 0), axis=0), total


@triton.jit
def draw_maxima_kernel(
    logits, draws, maxima, places,
    V: tl.constexpr, FIELDS: tl.constexpr, CHUNKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Computes maxima and places [R, CHUNKS] of logits [R, V]: infinity for a chunk with a NaN."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    if tl.load(draws + row * FIELDS + _MODE) > 0:
        at = chunk * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(logits + row * V + at, mask=at < V, other=-float("inf"))
        x = tl.where(x == x, x, float("inf"))
        largest = tl.max(x, axis=0)
        tl.store(maxima + row * CHUNKS + chunk, largest)
        tl.store(places + row * CHUNKS + chunk, tl.min(tl.where(x == largest, at, V), axis=0))


@triton.jit
def draw_sums_kernel(
    logits, draws, maxima, counts, sums,
    V: tl.constexpr, FIELDS: tl.constexpr, CHUNKS: tl.constexpr, CHUNK_BLOCK: tl.constexpr, BLOCK: tl.constexpr,
    LEVELS: tl.constexpr,
):  # fmt: skip
    """Computes counts and sums [R, CHUNKS, LEVELS]: of the finite scores of a chunk that are within each level."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    if tl.load(draws + row * FIELDS + _MODE) == _DRAWN:
        temperature = _temperature(draws, row, FIELDS)
        largest = tl.div_rn(_largest(maxima, row, CHUNKS, CHUNK_BLOCK), temperature)
        at = chunk * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(logits + row * V + at, mask=at < V, other=-float("inf"))
        scores = tl.div_rn(x, temperature)
        weights = _weights(_distances(largest, scores))
        to = (row * CHUNKS + chunk) * LEVELS
        for level in tl.static_range(LEVELS):
            inside = scores >= _reach(largest, tl.full((), level, tl.int32), LEVELS)
            tl.store(counts + to + level, tl.sum(inside.to(tl.int32), axis=0))
            tl.store(sums + to + level, tl.sum(tl.where(inside, weights, 0), axis=0))


@triton.jit
def draw_gather_kernel(
    logits, draws, maxima, counts, sums, scores, ids,
    V: tl.constexpr, FIELDS: tl.constexpr, CHUNKS: tl.constexpr, CHUNK_BLOCK: tl.constexpr, BLOCK: tl.constexpr,
    LEVELS: tl.constexpr, CANDIDATES: tl.constexpr,
):  # fmt: skip
    """Writes scores and ids [R, CANDIDATES] of the row's level, unless it has more scores than that."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    mode = tl.load(draws + row * FIELDS + _MODE)
    top_k = _top_k(draws, row, V, FIELDS)
    kept_share = tl.load(draws + row * FIELDS + _KEPT_SHARE)
    distance = tl.load(draws + row * FIELDS + _DISTANCE)
    if (mode == _DRAWN) & ((top_k > 0) | (kept_share >= 0) | (distance >= 0)):
        temperature = _temperature(draws, row, FIELDS)
        largest = tl.div_rn(_largest(maxima, row, CHUNKS, CHUNK_BLOCK), temperature)
        level, count, _ = _level(counts, sums, draws, largest, row, V, FIELDS, CHUNKS, CHUNK_BLOCK, LEVELS)
        if count <= CANDIDATES:
            other = tl.arange(0, CHUNK_BLOCK)
            earlier = tl.load(counts + (row * CHUNKS + other) * LEVELS + level, mask=other < chunk, other=0)
            at = chunk * BLOCK + tl.arange(0, BLOCK)
            x = tl.load(logits + row * V + at, mask=at < V, other=-float("inf"))
            found = tl.div_rn(x, temperature)
            inside = found >= _reach(largest, level, LEVELS)
            place = tl.sum(earlier, axis=0) + tl.cumsum(inside.to(tl.int32), axis=0) - 1
            tl.store(scores + row * CANDIDATES + place, found, mask=inside)
            tl.store(ids + row * CANDIDATES + place, at, mask=inside)


@triton.jit
def _find(values, weights, low, high, target):
    """Returns the largest number from low to high for which the weight of all values from there on exceeds the target;
    low, if none does. values: int32; weights: int64; low, high: int64."""
    while low < high:
        middle = low + ((high - low + 1) >> 1)
        enough = tl.sum(tl.where(values >= middle.to(tl.int32), weights, 0), axis=0) > target
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle - 1)
    return low.to(tl.int32)


@triton.jit
def _sure(before, upto, target, slack):
    """Whether the token between these sums is that of the definition."""
    return (upto - target > slack) & ((before == 0) | (target - before > slack))


@triton.jit
def _at(values, weights, value):
    """Returns the weight of all larger values, and of these and the value itself."""
    before = tl.sum(tl.where(values > value, weights, 0), axis=0)
    return before, before + tl.sum(tl.where(values == value, weights, 0), axis=0)


@triton.jit
def _likeliest(keys, ids, weights, low, high, target, V: tl.constexpr):
    """Returns the id with which the sum passes the target, the likeliest tokens first and of equal ones those with the
    highest ids; and the sums without and with it."""
    key = _find(keys, weights, low, high, target)
    above = tl.sum(tl.where(keys > key, weights, 0), axis=0)
    tied = tl.where(keys == key, weights, 0)
    zero = above * 0
    found = _find(ids, tied, zero, zero + V - 1, target - above)
    before, upto = _at(ids, tied, found)
    return found, above + before, above + upto


@triton.jit
def _first(ids, weights, target, V: tl.constexpr):
    """Returns the id with which the sum passes the target, in the order of ids; and the sums without and with it."""
    zero = target * 0
    found = _find(-ids, weights, zero - (V - 1), zero, target)
    before, upto = _at(-ids, weights, found)
    return -found, before, upto


@triton.jit
def _draw_candidates(
    scores, ids, counts, sums, draws, largest, row, V: tl.constexpr, FIELDS: tl.constexpr, CHUNKS: tl.constexpr,
    CHUNK_BLOCK: tl.constexpr, LEVELS: tl.constexpr, CANDIDATES: tl.constexpr,
):  # fmt: skip
    """Draws from a row of which tokens are left out."""
    top_k = _top_k(draws, row, V, FIELDS)
    uniform = tl.load(draws + row * FIELDS + _UNIFORM)
    kept_share = tl.load(draws + row * FIELDS + _KEPT_SHARE)
    distance = tl.load(draws + row * FIELDS + _DISTANCE)
    _, count, total = _level(counts, sums, draws, largest, row, V, FIELDS, CHUNKS, CHUNK_BLOCK, LEVELS)
    token = tl.full((), -1, tl.int32)
    if count <= CANDIDATES:
        slot = tl.arange(0, CANDIDATES)
        there = slot < count
        score = tl.load(scores + row * CANDIDATES + slot, mask=there, other=-float("inf"))
        place = tl.load(ids + row * CANDIDATES + slot, mask=there, other=0)
        # Keys have the order of the scores; -0 and 0 are equal.
        bits = (score + 0.0).to(tl.int32, bitcast=True)
        key = tl.where(bits < 0, bits ^ 2147483647, bits)
        weight = tl.where(there, _weights(_distances(largest, score)), 0)
        high = tl.max(key, axis=0)
        low = tl.min(tl.where(there, key, high), axis=0).to(tl.int64)
        if top_k > 0:
            kth = _find(key, there.to(tl.int64), low, high.to(tl.int64), (top_k - 1).to(tl.int64))
            weight = tl.where(key >= kth, weight, 0)
            total = tl.sum(weight, axis=0)
        mass = tl.sum(weight, axis=0)
        sure = mass > 0
        if kept_share >= 0:
            limit = _share_of(total, kept_share)
            _, before, upto = _likeliest(key, place, weight, low, high.to(tl.int64), limit, V)
            sure = sure & _sure(before, upto, limit, _slack(total, V))
            mass = upto
        if distance >= 0:
            # Scores come from their keys again: held all the while, they and their distances would be spilt.
            x = _distances(largest, tl.where(key < 0, key ^ 2147483647, key).to(tl.float32, bitcast=True))
            bound = distance.to(tl.int64) << 8
            stays = (x <= bound - _FUZZ) | (key == high)
            unsure = (x <= bound + _FUZZ) & (stays == 0) & (weight > 0)
            sure = sure & (tl.sum(unsure.to(tl.int32), axis=0) == 0)
            weight = tl.where(stays, weight, 0)
            mass = tl.minimum(mass, tl.sum(weight, axis=0))
        target = _share_of(mass, uniform)
        if kept_share >= 0:
            token, before, upto = _likeliest(key, place, weight, low, high.to(tl.int64), target, V)
        else:
            token, before, upto = _first(place, weight, target, V)
        sure = sure & _sure(before, upto, target, _slack(mass, V))
        token = tl.where(sure, token, -1)
    return token


@triton.jit
def _draw_any(
    logits, draws, sums, temperature, largest, row, V: tl.constexpr, FIELDS: tl.constexpr, CHUNKS: tl.constexpr,
    CHUNK_BLOCK: tl.constexpr, BLOCK: tl.constexpr, LEVELS: tl.constexpr,
):  # fmt: skip
    """Draws from a row of which no token is left out: first the chunk, then the token."""
    uniform = tl.load(draws + row * FIELDS + _UNIFORM)
    chunk = tl.arange(0, CHUNK_BLOCK)
    of_chunk = tl.load(sums + (row * CHUNKS + chunk) * LEVELS + LEVELS - 1, mask=chunk < CHUNKS, other=0)
    total = tl.sum(of_chunk, axis=0)
    target = _share_of(total, uniform)
    chosen, earlier, _ = _first(chunk, of_chunk, target, CHUNKS)
    at = chosen * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits + row * V + at, mask=at < V, other=-float("inf"))
    weight = _weights(_distances(largest, tl.div_rn(x, temperature)))
    weight = tl.where(at < V, weight, 0)
    token, before, upto = _first(at, weight, target - earlier, CHUNKS * BLOCK)
    sure = _sure(earlier + before, earlier + upto, target, _slack(total, V))
    return tl.where(sure, token, -1)


@triton.jit
def draw_finish_kernel(
    logits, draws, maxima, places, counts, sums, scores, ids, tokens,
    V: tl.constexpr, FIELDS: tl.constexpr, CHUNKS: tl.constexpr, CHUNK_BLOCK: tl.constexpr, BLOCK: tl.constexpr,
    LEVELS: tl.constexpr, CANDIDATES: tl.constexpr,
):  # fmt: skip
    """Writes tokens [R]."""
    row = tl.program_id(0).to(tl.int64)
    mode = tl.load(draws + row * FIELDS + _MODE)
    token = tl.full((), -1, tl.int32)
    if mode > 0:
        top_k = _top_k(draws, row, V, FIELDS)
        kept_share = tl.load(draws + row * FIELDS + _KEPT_SHARE)
        distance = tl.load(draws + row * FIELDS + _DISTANCE)
        logit = _largest(maxima, row, CHUNKS, CHUNK_BLOCK)
        finite = (logit < float("inf")) & (logit > -float("inf"))
        if mode == _GREEDY:
            chunk = tl.arange(0, CHUNK_BLOCK)
            part = tl.load(maxima + row * CHUNKS + chunk, mask=chunk < CHUNKS, other=-float("inf"))
            place = tl.load(places + row * CHUNKS + chunk, mask=chunk < CHUNKS, other=V)
            token = tl.min(tl.where(part == logit, place, V), axis=0)
        else:
            temperature = _temperature(draws, row, FIELDS)
            largest = tl.div_rn(logit, temperature)
            finite = finite & (largest < float("inf")) & (largest > -float("inf"))
            if (top_k > 0) | (kept_share >= 0) | (distance >= 0):
                token = _draw_candidates(scores, ids, counts, sums, draws, largest, row, V, FIELDS, CHUNKS,
                                         CHUNK_BLOCK, LEVELS, CANDIDATES)  # fmt: skip
            else:
                token = _draw_any(logits, draws, sums, temperature, largest, row, V, FIELDS, CHUNKS, CHUNK_BLOCK,
                                  BLOCK, LEVELS)  # fmt: skip
        token = tl.where(finite, token, -1)
    tl.store(tokens + row, token)
