"""Lists the types of the KV cache that a build can be asked for."""

from __future__ import annotations

AS_ACTIVATIONS = "auto"
"""The type of the activations. It is the default."""
KV_CACHE_DTYPES = (AS_ACTIVATIONS, "int8")
"""The value "int8" is 8 bits with a scale for each token and head."""
