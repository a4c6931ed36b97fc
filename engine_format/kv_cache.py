"""Types of the KV cache that a build can be asked for."""

from __future__ import annotations

KV_CACHE_DTYPES = ("auto", "int8")
"""The type of the activations, or 8 bits with a scale for each token and head."""
