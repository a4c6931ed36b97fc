"""Packs an int4 KV cache into the bytes of its pages, which plugins/paged_attention/layout.h lays out, and unpacks it.

P blocks, H KV heads, B positions of a block, D dimensions of a head, G groups of dimensions. A part is (integers
[P, H, B, D], scales [P, H, B, G], offsets [P, H, B, G]), all float32.
"""

from __future__ import annotations

import numpy as np

from tensorwright.plugins.paged_attention.quantize import GROUP
from tensorwright.plugins.rounding import from_bfloat16_bits, to_bfloat16_bits

Part = tuple[np.ndarray, np.ndarray, np.ndarray]
TILE = 16
"""Positions of one K tile, as TW_LANES of plugins/common/kernel_types.h."""
K_RUN, V_RUN = 8, 32
"""Dimensions that are packed together: the second half of them lies in the upper halves of the first half's bytes."""


def to_int4_pages(k: Part, v: Part) -> np.ndarray:
    """Returns uint8 [P, bytes of a block]."""
    blocks, heads = k[0].shape[:2]
    bytes_of_k, words_of_k, words_of_v = _bytes(k[0], K_RUN), _words(k), _words(v)
    pieces = []
    for group in range(words_of_k.shape[3]):
        part = bytes_of_k[..., group * GROUP // 2 : (group + 1) * GROUP // 2]
        tiles = part.reshape(blocks, heads, -1, TILE, part.shape[3] // 4, 4).swapaxes(3, 4)
        words = words_of_k[..., group].reshape(blocks, heads, -1, TILE)
        pieces += [tiles.reshape(*tiles.shape[:3], -1), np.ascontiguousarray(words).view(np.uint8)]
    k_bytes = np.concatenate(pieces, axis=3).reshape(blocks, heads, -1)
    v_bytes = _bytes(v[0], V_RUN).reshape(blocks, heads, -1)
    v_words = np.ascontiguousarray(words_of_v.swapaxes(2, 3)).view(np.uint8).reshape(blocks, heads, -1)
    return np.concatenate([k_bytes, v_bytes, v_words], axis=2).reshape(blocks, -1)


def from_int4_pages(pages: np.ndarray, heads: int, block_size: int, head_dim: int) -> tuple[Part, Part]:
    """Inverts `to_int4_pages`."""
    blocks, groups = len(pages), -(-head_dim // GROUP)
    data = np.ascontiguousarray(pages).reshape(blocks, heads, -1)
    row, words = -(-head_dim // V_RUN) * V_RUN // 2, 4 * groups * block_size
    k_size = data.shape[2] - block_size * row - words
    tiles = data[:, :, :k_size].reshape(blocks, heads, block_size // TILE, -1)
    integers, k_words, at = [], [], 0
    for group in range(groups):
        dims = min(GROUP, head_dim - group * GROUP)
        size = TILE * -(-dims // K_RUN) * 4
        panel = tiles[..., at : at + size].reshape(*tiles.shape[:3], -1, TILE, 4).swapaxes(3, 4)
        integers.append(_integers(panel.reshape(blocks, heads, block_size, -1), K_RUN)[..., :dims])
        k_words.append(np.ascontiguousarray(tiles[..., at + size : at + size + 4 * TILE]).view(np.uint32))
        at += size + 4 * TILE
    k = np.concatenate(integers, axis=3)
    v = _integers(data[:, :, k_size : k_size + block_size * row].reshape(blocks, heads, block_size, row), V_RUN)
    v_words = np.ascontiguousarray(data[:, :, -words:]).view(np.uint32).reshape(blocks, heads, groups, block_size)
    of_k = np.stack([words.reshape(blocks, heads, block_size) for words in k_words], axis=3)
    return (k, *_scales(of_k)), (v[..., :head_dim], *_scales(v_words.swapaxes(2, 3)))


def int4_position_bytes(head_dim: int) -> int:
    """Returns the bytes of one position of one head in a page: K and V, their scales and their offsets."""
    k, v = (-(-head_dim // run) * run // 2 for run in (K_RUN, V_RUN))
    return k + v + 2 * 4 * -(-head_dim // GROUP)


def _bytes(x: np.ndarray, run: int) -> np.ndarray:
    """Packs integers [..., D] -> uint8 [..., D / 2], where D is padded with zeros to a multiple of `run`."""
    padded = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % run)]).astype(np.uint8)
    halves = padded.reshape(*x.shape[:-1], -1, 2, run // 2)
    return (halves[..., 0, :] | halves[..., 1, :] << 4).reshape(*x.shape[:-1], -1)


def _integers(packed: np.ndarray, run: int) -> np.ndarray:
    """Inverts `_bytes`, with the padding, as float32."""
    runs = packed.reshape(*packed.shape[:-1], -1, run // 2)
    return np.stack([runs & 15, runs >> 4], axis=-2).reshape(*packed.shape[:-1], -1).astype(np.float32)


def _words(part: Part) -> np.ndarray:
    """Returns the words of all scales and offsets: uint32 [P, H, B, G]."""
    return to_bfloat16_bits(part[1]).astype(np.uint32) << 16 | to_bfloat16_bits(part[2])


def _scales(words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns scales and offsets of words [P, H, B, G]."""
    return from_bfloat16_bits((words >> 16).astype(np.uint16)), from_bfloat16_bits(words.astype(np.uint16))
