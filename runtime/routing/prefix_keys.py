"""Computes keys of a prompt's beginnings. Two prompts have as many keys in common as blocks of their tokens are equal.

The blocks are those of the engine's prefix cache, which shares whole blocks only.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import xxhash

MAX_KEYS = 64
"""The most keys of one prompt. Prompts that are equal for so many blocks are routed alike whatever follows."""


def prefix_keys(tokens: Sequence[int], block_size: int, salt: str = "") -> tuple[int, ...]:
    """Returns the key of the first block, of the first two blocks, and so on.

    A last block that is not full has no key, and neither has a block that ends with the prompt: its last token is
    computed in any case. salt: prompts with different salts share nothing in the cache, so they have different keys.
    """
    count = min((len(tokens) - 1) // block_size, MAX_KEYS)
    keys: list[int] = []
    hashed = xxhash.xxh3_64(salt.encode())
    for block in range(count):
        hashed.update(array("i", tokens[block * block_size : (block + 1) * block_size]).tobytes())
        keys.append(hashed.intdigest())
    return tuple(keys)
