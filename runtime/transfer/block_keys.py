"""Computes the keys of the blocks of a prefix: a chain of hashes over the tokens.

A block's key names the engine and all tokens up to the block's end. Both ends compute the keys for themselves. A block
whose key differs is of another prompt, or of another place in this one, and is refused.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

KEY_BYTES = 16


def block_keys(tokens: npt.NDArray[np.int32], block_size: int, fingerprint: str) -> list[bytes]:
    """Returns the key of each full block. tokens: int32 [blocks * block_size]. fingerprint: that of the Identity."""
    key = hashlib.blake2b(f"{fingerprint} {block_size}".encode(), digest_size=KEY_BYTES).digest()
    keys = []
    for start in range(0, len(tokens) - block_size + 1, block_size):
        content = tokens[start : start + block_size].astype("<i4").tobytes()
        key = hashlib.blake2b(key + content, digest_size=KEY_BYTES).digest()
        keys.append(key)
    return keys
