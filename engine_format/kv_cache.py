"""Lists the types of the KV cache that a build can be asked for."""

from __future__ import annotations

AS_ACTIVATIONS = "auto"
"""The type of the activations. It is the default."""
KV_CACHE_DTYPES = (AS_ACTIVATIONS, "int8", "int4")
"""The value "int8" is 8 bits with a scale for each token and head. The value "int4" is 4 bits with a scale and an
offset for each token and 64 dimensions of a head; only target cpu has it."""
