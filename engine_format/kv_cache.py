"""Lists the types of the KV cache that a build can be asked for."""

from __future__ import annotations

KV_CACHE_DTYPES = ("auto", "int8")
"""The value "auto" is the type of the activations. The value "int8" is 8 bits with a scale for each token and head."""
