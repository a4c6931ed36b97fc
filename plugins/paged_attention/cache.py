"""The paged KV cache of one layer in plain numpy: what the interpreter runs on, and the oracle of the page layout."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tensorwright.plugins.rounding import from_bfloat16_bits, round_to, to_bfloat16_bits

TILE = 16
"""Positions of one K tile: TW_LANES of plugins/common/kernel_types.h."""


@dataclass(frozen=True)
class PagedCache:
    """k and v: [blocks, kv_heads, block_size, head_dim] float32, every value representable in `dtype`."""

    k: np.ndarray
    v: np.ndarray
    dtype: str

    @staticmethod
    def empty(blocks: int, kv_heads: int, block_size: int, head_dim: int, dtype: str) -> PagedCache:
        """Slots start as NaN: nobody may read one before it is written."""
        shape = (blocks, kv_heads, block_size, head_dim)
        return PagedCache(np.full(shape, np.nan, np.float32), np.full(shape, np.nan, np.float32), dtype)

    @property
    def block_size(self) -> int:
        return self.k.shape[2]

    def write(self, slots: np.ndarray, k: np.ndarray, v: np.ndarray) -> PagedCache:
        """A copy with k and v [tokens, kv_heads, head_dim], rounded to `dtype`, at `slots` [tokens]."""
        block, offset = slots // self.block_size, slots % self.block_size
        new = PagedCache(self.k.copy(), self.v.copy(), self.dtype)
        new.k[block, :, offset] = round_to(k, self.dtype)
        new.v[block, :, offset] = round_to(v, self.dtype)
        return new

    def read(self, block_table: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Positions [0, length) of the sequence with this block table: k and v [length, kv_heads, head_dim]."""
        position = np.arange(length)
        block, offset = block_table[position // self.block_size], position % self.block_size
        return self.k[block, :, offset], self.v[block, :, offset]

    def to_pages(self) -> np.ndarray:
        """The bytes of plugins/paged_attention/layout.h: [blocks, bytes of a block] uint8."""
        blocks, kv_heads, block_size, head_dim = self.k.shape
        k, v = (self._store(x) for x in (self.k, self.v))
        group = 4 // k.itemsize
        tiles = k.reshape(blocks, kv_heads, block_size // TILE, TILE, head_dim // group, group).swapaxes(3, 4)
        k_bytes = np.ascontiguousarray(tiles).view(np.uint8).reshape(blocks, kv_heads, -1)
        v_bytes = np.ascontiguousarray(v).view(np.uint8).reshape(blocks, kv_heads, -1)
        padding = np.zeros((blocks, kv_heads, -v_bytes.shape[2] % 64), np.uint8)
        return np.concatenate([k_bytes, v_bytes, padding], axis=2).reshape(blocks, -1)

    @staticmethod
    def from_pages(pages: np.ndarray, kv_heads: int, block_size: int, head_dim: int, dtype: str) -> PagedCache:
        """The inverse of `to_pages`."""
        storage = np.dtype(np.uint16 if dtype == "bfloat16" else np.float32)
        group, blocks = 4 // storage.itemsize, len(pages)
        size = block_size * head_dim * storage.itemsize
        heads = np.ascontiguousarray(pages).reshape(blocks, kv_heads, -1)
        k = np.ascontiguousarray(heads[:, :, :size]).view(storage)
        k = k.reshape(blocks, kv_heads, block_size // TILE, head_dim // group, TILE, group).swapaxes(3, 4)
        v = np.ascontiguousarray(heads[:, :, size : 2 * size]).view(storage)
        shape = (blocks, kv_heads, block_size, head_dim)
        k, v = np.ascontiguousarray(k).reshape(shape), v.reshape(shape)
        if dtype == "bfloat16":
            k, v = from_bfloat16_bits(k), from_bfloat16_bits(v)
        return PagedCache(k, v, dtype)

    def _store(self, x: np.ndarray) -> np.ndarray:
        return to_bfloat16_bits(x) if self.dtype == "bfloat16" else np.ascontiguousarray(x, np.float32)
