"""Defines the paged KV cache of one layer in plain numpy, for the interpreter and as the oracle of the page layout."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import cast

import numpy as np

from tensorwright.engine_format.kv_cache import SCALED_BYTES
from tensorwright.errors import GraphError
from tensorwright.plugins.paged_attention.int4_pages import Part, from_int4_pages, to_int4_pages
from tensorwright.plugins.paged_attention.quantize import (
    GROUP,
    KV_LEVELS,
    quantize_groups,
    quantize_heads,
    quantize_heads_e4m3,
    restore_groups,
    restore_heads,
)
from tensorwright.plugins.rounding import from_bfloat16_bits, round_to, to_bfloat16_bits

TILE = 16
"""Positions of one K tile, as TW_LANES of plugins/common/kernel_types.h."""
STORAGE = {"float32": np.float32, "bfloat16": np.uint16, "int8": np.int8}
UNWRITTEN = {"int8": -128, "int4": 0, "fp8": np.nan}
"""The content of a slot of a quantized cache before it is written. No value is rounded to -128 or to the NaN of E4M3; 4
bits have no integer to spare."""
_ROUNDED: dict[str, Callable[[np.ndarray], tuple[np.ndarray, ...]]] = {
    "int8": partial(quantize_heads, levels=KV_LEVELS),
    "int4": quantize_groups,
    "fp8": quantize_heads_e4m3,
}
"""What rounds K and V of a quantized cache: from [tokens, kv_heads, head_dim] to numbers, scales and, for int4,
offsets."""


@dataclass(frozen=True)
class PagedCache:
    """k and v: [blocks, kv_heads, block_size, head_dim] float32, every value representable in `dtype`.

    v_dim: 0, or the columns of k that are v too; v has no columns of its own then.

    In "int8" they are integers, and k_scale and v_scale [blocks, kv_heads, block_size] float32 hold the value of 1. In
    "fp8" they are E4M3 numbers with such scales.
    In "int4" the scales are [blocks, kv_heads, block_size, groups], and k_low and v_low, of that shape too, hold the
    value of 0; all of them are representable in bfloat16.
    """

    k: np.ndarray
    v: np.ndarray
    dtype: str
    k_scale: np.ndarray | None = None
    v_scale: np.ndarray | None = None
    k_low: np.ndarray | None = None
    v_low: np.ndarray | None = None
    v_dim: int = field(default=0, kw_only=True)

    @staticmethod
    def empty(blocks: int, kv_heads: int, block_size: int, head_dim: int, dtype: str, v_dim: int = 0) -> PagedCache:
        """Returns a cache of NaN, or of numbers with scales of NaN, so that a read before a write shows."""
        shape = (blocks, kv_heads, block_size, head_dim)
        if dtype in UNWRITTEN:
            k, v = np.full((2, *shape), UNWRITTEN[dtype], np.float32)
            has_offsets = dtype not in SCALED_BYTES
            scales = (*shape[:3], -(-head_dim // GROUP)) if has_offsets else shape[:3]
            return PagedCache(k, v, dtype, *np.full((4 if has_offsets else 2, *scales), np.nan, np.float32))
        v_shape = (*shape[:3], 0 if v_dim else head_dim)
        return PagedCache(np.full(shape, np.nan, np.float32), np.full(v_shape, np.nan, np.float32), dtype, v_dim=v_dim)

    @property
    def block_size(self) -> int:
        return self.k.shape[2]

    def write(self, slots: np.ndarray, k: np.ndarray, v: np.ndarray) -> PagedCache:
        """Returns a copy with k and v [tokens, kv_heads, head_dim], rounded to `dtype`, at `slots` [tokens]."""
        block, offset = slots // self.block_size, slots % self.block_size
        if self.k_scale is None or self.v_scale is None:
            new = PagedCache(self.k.copy(), self.v.copy(), self.dtype, v_dim=self.v_dim)
            new.k[block, :, offset] = round_to(k, self.dtype)
            new.v[block, :, offset] = round_to(v, self.dtype)
            return new
        new = deepcopy(self)
        at = (block, slice(None), offset)
        for values, arrays in ((k, (new.k, new.k_scale, new.k_low)), (v, (new.v, new.v_scale, new.v_low))):
            for array, part in zip(arrays, _ROUNDED[self.dtype](values), strict=False):  # int8 and fp8 lack offsets
                assert array is not None
                array[at] = part
        return new

    def read(self, block_table: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns positions [0, length) of the sequence with this block table: k and v [length, kv_heads, head_dim].

        They are float32, or float64 from a quantized cache: times their scales, exactly, and with int4's offsets.
        """
        position = np.arange(length)
        block, offset = block_table[position // self.block_size], position % self.block_size
        k, v = self.k[block, :, offset], self.v[block, :, offset]
        if self.v_dim:
            return k, k[..., : self.v_dim]
        if self.k_scale is None or self.v_scale is None:
            return k, v
        k_scale, v_scale = self.k_scale[block, :, offset], self.v_scale[block, :, offset]
        if self.k_low is None or self.v_low is None:
            return restore_heads(k, k_scale), restore_heads(v, v_scale)
        k_low, v_low = self.k_low[block, :, offset], self.v_low[block, :, offset]
        return restore_groups(k, k_scale, k_low), restore_groups(v, v_scale, v_low)

    def to_pages(self) -> np.ndarray:
        """Returns the bytes of plugins/paged_attention/layout.h: uint8 [blocks, bytes of a block]. Raises GraphError
        for a type that target cpu lacks."""
        if self.dtype == "fp8":
            raise GraphError("target cpu has no fp8 KV cache, and so no layout of its blocks")
        if self.dtype == "int4":
            parts = (self.k, self.k_scale, self.k_low), (self.v, self.v_scale, self.v_low)
            return to_int4_pages(*(cast("Part", part) for part in parts))
        blocks, kv_heads, block_size, head_dim = self.k.shape
        k, v = (self._store(x) for x in (self.k, self.v))
        group = 4 // k.itemsize
        k = np.pad(k, [(0, 0)] * 3 + [(0, -head_dim % group)])
        tiles = k.reshape(blocks, kv_heads, block_size // TILE, TILE, -1, group).swapaxes(3, 4)
        k_bytes = np.ascontiguousarray(tiles).view(np.uint8).reshape(blocks, kv_heads, block_size // TILE, -1)
        if self.v_dim:
            return k_bytes.reshape(blocks, -1)
        v_bytes = np.ascontiguousarray(v).view(np.uint8).reshape(blocks, kv_heads, -1)
        v_bytes = np.pad(v_bytes, [(0, 0), (0, 0), (0, -v_bytes.shape[2] % 64)])
        if self.k_scale is not None and self.v_scale is not None:
            scales = self.k_scale.view(np.uint8).reshape(blocks, kv_heads, block_size // TILE, -1)
            k_bytes = np.concatenate([k_bytes, scales], axis=3)
            v_bytes = np.concatenate([v_bytes, self.v_scale.view(np.uint8)], axis=2)
        return np.concatenate([k_bytes.reshape(blocks, kv_heads, -1), v_bytes], axis=2).reshape(blocks, -1)

    @staticmethod
    def from_pages(pages: np.ndarray, kv_heads: int, block_size: int, head_dim: int, dtype: str) -> PagedCache:
        """Inverts `to_pages`."""
        if dtype == "int4":
            parts = from_int4_pages(pages, kv_heads, block_size, head_dim)
            return PagedCache(parts[0][0], parts[1][0], dtype, *(part[i] for i in (1, 2) for part in parts))
        storage = np.dtype(STORAGE[dtype])
        group, blocks, tiles = 4 // storage.itemsize, len(pages), block_size // TILE
        padded = -(-head_dim // group) * group
        panel, scales = TILE * padded * storage.itemsize, 4 * TILE if dtype == "int8" else 0
        heads = np.ascontiguousarray(pages).reshape(blocks, kv_heads, -1)
        k_part = heads[:, :, : tiles * (panel + scales)].reshape(blocks, kv_heads, tiles, -1)
        k = np.ascontiguousarray(k_part[..., :panel]).view(storage)
        k = k.reshape(blocks, kv_heads, tiles, padded // group, TILE, group).swapaxes(3, 4)
        k = k.reshape(blocks, kv_heads, block_size, padded)[..., :head_dim]
        v_start = tiles * (panel + scales)
        v_size = block_size * head_dim * storage.itemsize
        v = np.ascontiguousarray(heads[:, :, v_start : v_start + v_size]).view(storage)
        k, v = np.ascontiguousarray(k), v.reshape(blocks, kv_heads, block_size, head_dim)
        if dtype == "bfloat16":
            k, v = from_bfloat16_bits(k), from_bfloat16_bits(v)
        if dtype != "int8":
            return PagedCache(k, v, dtype)
        k_scale = np.ascontiguousarray(k_part[..., panel:]).view(np.float32).reshape(blocks, kv_heads, -1)
        v_scale = np.ascontiguousarray(heads[:, :, -4 * block_size :]).view(np.float32)
        return PagedCache(k.astype(np.float32), v.astype(np.float32), dtype, k_scale, v_scale)

    def _store(self, x: np.ndarray) -> np.ndarray:
        return to_bfloat16_bits(x) if self.dtype == "bfloat16" else np.ascontiguousarray(x, STORAGE[self.dtype])
