"""Reads spans of time in the form that people use, such as "50ms"."""

from __future__ import annotations

import math
import re
from typing import Any

from tensorwright.errors import InvalidOptionError
from tensorwright.number_checks import real

UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_DURATION = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([a-z]*)\s*")


def parse_duration(value: Any, name: str) -> float:
    """Returns the seconds that a number or a text such as "50ms", "1.5 s" or "2min" means.

    Raises InvalidOptionError. name: the option that the error names.
    """
    seconds = real(value)
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is not None and match[2] in UNITS:
        seconds = float(match[1]) * UNITS[match[2]]
    if 0 < seconds < math.inf:
        return float(seconds)
    raise InvalidOptionError(f'{name} must be a positive number of seconds or a text like "50ms", got {value!r}')


def format_duration(seconds: float) -> str:
    """Returns seconds as OpenAI's rate-limit headers have them: 0.0204 becomes "21ms", 361.5 "6m1.5s"."""
    milliseconds = math.ceil(max(0.0, seconds) * 1e3)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    parts = [f"{hours}h" if hours else "", f"{minutes}m" if hours or minutes else "", f"{rest / 1e3:g}s"]
    return "".join(parts)
