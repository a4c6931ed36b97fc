"""Reads and writes sizes in bytes in the form that people use, such as "512MiB"."""

from __future__ import annotations

import math
import numbers
import re
from typing import Any

from tensorwright.errors import InvalidOptionError

UNITS = {"": 1, "b": 1} | {
    prefix + suffix: base**power
    for power, prefix in enumerate("kmgt", start=1)
    for suffix, base in (("", 1000), ("b", 1000), ("ib", 1024))
}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*")


def parse_size(value: Any, name: str = "kv_cache_memory") -> int:
    """Returns the bytes that an int or a text such as "512MiB", "1.5 GiB" or "2GB" means.

    Raises InvalidOptionError. name: the option that the error names.
    """
    if isinstance(value, numbers.Integral) and not isinstance(value, bool) and int(value) > 0:
        return int(value)
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is not None and match[2].lower() in UNITS:
        size = float(match[1]) * UNITS[match[2].lower()]
        if 1 <= size < math.inf:
            return int(size)
    raise InvalidOptionError(f'{name} must be a positive number of bytes or a text like "512MiB", got {value!r}')


def format_size(size: float) -> str:
    """Returns a number of bytes as a text for people: 1536 becomes "1.5 KiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
