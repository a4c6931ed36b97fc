"""Reads JSON from files and servers that somebody else wrote.

Any room may import this file; it imports nothing of ours. A value that it returns can be shown by repr, walked
recursively, and written again as UTF-8. Python's own reader accepts values as deep as its stack, and texts that are
not Unicode.
"""

from __future__ import annotations

import json
from typing import Any

MAX_DEPTH = 100
"""The greatest number of lists and objects inside each other."""


def read_json(data: bytes | str) -> Any:
    """Returns the value. Raises ValueError; its text gives the reason, to be put behind the words "is not JSON"."""
    text = data if isinstance(data, str) else data.decode("utf-8")
    try:
        value = json.loads(text)  # it raises ValueError also for a number of too many digits
    except RecursionError:
        raise _too_deep() from None
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [part for each in level if isinstance(each, (list, dict)) for part in _parts(each)]
    if any(isinstance(each, (list, dict)) for each in level):
        raise _too_deep()
    if "\\u" in text:  # without an escape the text cannot contain half a character
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    return value


def _parts(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value


def _too_deep() -> ValueError:
    return ValueError(f"more than {MAX_DEPTH} lists and objects inside each other")
