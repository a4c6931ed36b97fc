"""JSON of files and of servers that somebody else wrote. A leaf: any room may import it, it imports nothing of ours.

What is read here can be shown by repr, walked recursively, and written again as UTF-8: Python's own reader takes
values as deep as its stack, and text that is no Unicode.
"""

from __future__ import annotations

import json
from typing import Any

MOST_DEPTH = 100
"""Lists and objects inside each other."""


def read_json(data: bytes | str) -> Any:
    """The value. ValueError says why there is none, in words that fit behind "is not JSON"."""
    text = data if isinstance(data, str) else data.decode("utf-8")
    try:
        value = json.loads(text)  # a number of too many digits is a ValueError too
    except RecursionError:
        raise _too_deep() from None
    level = [value]
    for _ in range(MOST_DEPTH):
        level = [part for each in level if isinstance(each, (list, dict)) for part in _parts(each)]
    if any(isinstance(each, (list, dict)) for each in level):
        raise _too_deep()
    if "\\u" in text:  # else nothing in it can be half a character
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    return value


def _parts(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value


def _too_deep() -> ValueError:
    return ValueError(f"more than {MOST_DEPTH} lists and objects inside each other")
