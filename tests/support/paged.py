"""A made-up paged sequence for the attention tests: scattered blocks, NaN wherever no position was written."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from support.isa_levels import rounds_otherwise
from tensorwright.plugins.paged_attention.attention import attend
from tensorwright.plugins.paged_attention.cache import PagedCache
from tensorwright.plugins.paged_attention.quantize import GROUP, QUERY_LEVELS_OF, quantize_heads, restore_heads
from tensorwright.plugins.rounding import from_bfloat16_bits, round_to, to_bfloat16_bits
from tensorwright.runtime import _testing

SPLIT = 512
UNIT = 2.0**-24  # half the distance from 1 to the next float32
DTYPES = ("float32", "bfloat16")
KV_NUMBERS = {"int8": 3, "int4": 4}
"""The caches of integers, and TW_I8 and TW_I4 of plugins/common/kernel_types.h."""


def best_runnable(table: list[tuple[str, str, bool]]) -> int:
    """The index of the first kernel of a table that this processor has."""
    return next(index for index, (_, _, runnable) in enumerate(table) if runnable)


def stored(x: np.ndarray, dtype: str) -> np.ndarray:
    """The array that a kernel of `dtype` reads: float32, or uint16 bit patterns."""
    return np.ascontiguousarray(x, np.float32) if dtype == "float32" else to_bfloat16_bits(x)


def restored(x: np.ndarray) -> np.ndarray:
    return x if x.dtype == np.float32 else from_bfloat16_bits(x)


@dataclass
class Sequence:
    """`length` positions of q [L, H, D], k and v [L, Hkv, D], with K and V in pages under a random block table.

    With `kv`, "int8" or "int4", the cache is of that type, q stays of `dtype`, and k and v are what the cache's
    integers stand for.
    """

    length: int
    kv_heads: int = 1
    group: int = 7
    head_dim: int = 64
    block_size: int = 32
    dtype: str = "float32"
    window: int = 0
    chunked: bool = False
    sink_tokens: int = 0
    softcap: float = 0.0
    seed: int = 0
    with_sinks: bool = False
    with_slopes: bool = False
    kv: str = ""
    gone: tuple[int, ...] = ()  # blocks that no query sees

    def __post_init__(self) -> None:
        random = np.random.default_rng(self.seed)
        needed = -(-self.length // self.block_size)
        self.heads = self.kv_heads * self.group
        self.scale = float(np.float32(self.head_dim**-0.5))
        shape = (self.length, self.kv_heads, self.head_dim)
        self.q = self._normal(random, (self.length, self.heads, self.head_dim))
        self.k, self.v = self._normal(random, shape), self._normal(random, shape)
        self.block_table = random.permutation(needed + 3)[:needed].astype(np.int32)
        self.sinks = 3 * random.standard_normal(self.heads, np.float32) if self.with_sinks else None
        self.slopes = (0.5 ** np.arange(1, 1 + self.heads)).astype(np.float32) if self.with_slopes else None
        cache = PagedCache.empty(needed + 3, self.kv_heads, self.block_size, self.head_dim, self.cache_dtype)
        position = np.arange(self.length)
        self.slots = self.block_table[position // self.block_size] * self.block_size + position % self.block_size
        cache = cache.write(self.slots, self.k, self.v)
        self.k, self.v = cache.read(self.block_table, self.length)
        self.pages = cache.to_pages()

    @property
    def cache_dtype(self) -> str:
        return self.kv or self.dtype

    def _normal(self, random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return round_to(2 * random.standard_normal(shape, np.float32), self.dtype)

    def expected(self, begin: int, end: int) -> np.ndarray:
        """Queries [begin, end) by definition: [queries, H, D] float64."""
        q, k, v = self.q[begin:end], self.k[:end], self.v[:end]
        if self.kv:
            q = restore_heads(*quantize_heads(q, QUERY_LEVELS_OF[self.kv]))
        return attend(
            q, k, v, begin, self.scale, self.window, self.softcap, self.sinks, self.slopes, chunked=self.chunked,
            sink_tokens=self.sink_tokens, hidden=np.isin(np.arange(end) // self.block_size, self.gone),
        )  # fmt: skip

    @property
    def gone_blocks(self) -> list[int]:
        return [int(block in self.gone) for block in range(len(self.block_table))] if self.gone else []

    def rounds_weights(self, kernel: int) -> bool:
        """Whether the kernel rounds weights to bfloat16, since it sums V by dot products of pairs."""
        number = KV_NUMBERS[self.kv] if self.kv else DTYPES.index(self.dtype)
        return rounds_otherwise(_testing.attention_table(number)[kernel][0])

    def tolerance(self, kernel: int, y_dtype: str = "float32") -> float:
        """Bound of |y - exact|: a score is off by dot-product rounding, a weight by twice that relatively, the weighted
        mean of v by that and one rounding per position (and rescaling of each tile). Integers sum up exactly: of an
        int8 score only four roundings are left, but a weight is rounded once more, times V's scale. In int4 an element
        is an integer times the scale, at most twice the largest of its group, plus an offset, at most once; a group of
        K adds two roundings, and a sum of V is two sums. A weight that is rounded to bfloat16 is off by 2^-9, and by
        7.5e-5 of the shorter polynomial before; the mean of v by twice that at most, because the weights' sum is off as
        they are."""
        magnitude = float((np.abs(self.q).max((0, 1)) * np.abs(self.k).max((0, 1))).sum()) * self.scale
        roundings = 8 + (0 if self.kv else self.head_dim)
        if self.kv == "int4":
            magnitude = 3 * float(np.abs(self.q).max((0, 1)).sum() * np.abs(self.k).max()) * self.scale
            roundings += 2 * -(-self.head_dim // GROUP)
        bias = 0.0 if self.slopes is None else float(self.slopes.max()) * self.length
        score = roundings * UNIT * magnitude + 8 * UNIT * self.softcap + 2 * UNIT * bias
        largest = float(np.abs(self.v).max())
        sums = 2 * (self.length + self.length / 16 + 32 + bool(self.kv)) * UNIT * (3 if self.kv == "int4" else 1)
        weight = 2.0**-9 + 7.5e-5 if self.rounds_weights(kernel) else 0.0
        return largest * (2 * (score + weight) + sums) + (largest * 2.0**-8 if y_dtype == "bfloat16" else 0.0)

    def partial(
        self, kernel: int, begin: int, end: int, kv_head: int, split: int, *, values: bool = True, **noted: np.ndarray
    ) -> tuple[np.ndarray, ...]:
        """acc [queries, group, D], max and sum [queries, group] of one task. values: False leaves out acc.
        noted: tile_max and tile_sum [32, queries, group], which the kernel fills, or neither."""
        queries, first = end - begin, kv_head * self.group
        # The heads of a KV head are a column range of a wider matrix, as in the engine.
        q = stored(self.q[begin:end], self.dtype).reshape(queries, -1)
        part = q[:, first * self.head_dim : (first + self.group) * self.head_dim]
        acc = np.full((queries, self.group, self.head_dim), np.nan, np.float32)
        top, total = np.full((2, queries, self.group), np.nan, np.float32)
        _testing.run_attention(
            kernel, part, self.pages, self.block_table, acc, top, total, kv_head=kv_head, block_size=self.block_size,
            first_position=begin, split=split, scale=self.scale, window=self.window, softcap=self.softcap,
            kv_dtype=KV_NUMBERS.get(self.kv),
            slopes=None if self.slopes is None else self.slopes[first : first + self.group], chunked=self.chunked,
            sink_tokens=self.sink_tokens, gone=self.gone_blocks, values=values, **noted,
        )  # fmt: skip
        return acc, top, total

    def run(self, kernel: int, begin: int, end: int, chunk: int = 0, y_dtype: str = "float32") -> np.ndarray:
        """Queries [begin, end), `chunk` at a time (0: all at once): [queries, H, D] float32."""
        combine = best_runnable(_testing.attention_combine_table())
        y = stored(np.full((end - begin, self.heads, self.head_dim), np.nan, np.float32), y_dtype)
        for at in range(begin, end, chunk or end - begin):
            to = min(at + (chunk or end - begin), end)
            for kv_head in range(self.kv_heads):
                parts = [self.partial(kernel, at, to, kv_head, s) for s in range(-(-to // SPLIT))]
                acc, top, total = (np.stack(p) for p in zip(*parts, strict=True))
                rows = (to - at) * self.group
                row = np.arange(rows)
                head = kv_head * self.group + row % self.group
                offsets = ((at - begin + row // self.group) * self.heads + head) * self.head_dim
                _testing.run_attention_combine(
                    combine, acc.reshape(len(parts), rows, -1), top.reshape(len(parts), rows),
                    total.reshape(len(parts), rows), y.reshape(-1), offsets.tolist(),
                    None if self.sinks is None else self.sinks[head],
                )  # fmt: skip
        return restored(y)
