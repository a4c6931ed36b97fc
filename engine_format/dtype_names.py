"""Names of element types, as users may write them. A leaf like errors.py: any room may import it."""

from __future__ import annotations

SHORT_NAMES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "fp32": "float32",
    "float": "float32",
}
"""Short name -> the one that engines, messages and the cache know."""


def full_name(dtype: str) -> str:
    """ "bf16" -> "bfloat16". What is no short name stays as it is, for the caller to refuse."""
    return SHORT_NAMES.get(dtype, dtype) if isinstance(dtype, str) else dtype
