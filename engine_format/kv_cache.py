"""Lists the types of the KV cache that a build can be asked for."""

from __future__ import annotations

import math

AS_ACTIVATIONS = "auto"
"""The type of the activations. It is the default."""
KV_CACHE_DTYPES = (AS_ACTIVATIONS, "int8", "int4")
"""The value "int8" is 8 bits with a scale for each token and head. The value "int4" is 4 bits with a scale and an
offset for each token and 64 dimensions of a head; only target cpu has it."""
_INT4_GROUP = 64


def quantized_bits(dtype: str, head_dim: int) -> float | None:
    """Returns the bits of a number of a quantized cache, with its share of scales and offsets. None for a type of
    activations. head_dim: the numbers of a head, which share a scale of int8."""
    return {"int8": 8 + 32 / head_dim, "int4": 4 + 32 * math.ceil(head_dim / _INT4_GROUP) / head_dim}.get(dtype)
