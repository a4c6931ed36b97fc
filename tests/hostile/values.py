"""Values at their largest and oddest, as JSON text: what Python's own json would not write is among them."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

Value = Callable[[int], str]
"""Text of about so many bytes, of one JSON value or of what some reader takes for one."""


def text(size: int) -> str:
    return '"' + "a" * size + '"'


def words(size: int) -> str:
    return '"' + "word\\n" * (size // 6) + '"'


def surrogates(size: int) -> str:
    """Halves of characters, which no UTF-8 can spell."""
    return '"' + "\\ud800" * (size // 6) + '"'


def digits(size: int) -> str:
    """An integer."""
    return "7" * size


def decimals(size: int) -> str:
    return "0." + "7" * size


def deep(size: int) -> str:
    return "[" * (size // 2) + "]" * (size // 2)


def deep_objects(size: int) -> str:
    return '{"a":' * (size // 6) + "1" + "}" * (size // 6)


def repeat(item: str) -> Value:
    return lambda size: "[" + ",".join([item] * (size // (len(item) + 1))) + "]"


def keys(item: str) -> Value:
    """An object of many keys, all different, with this in each. One is kept, for it takes long to make."""

    @lru_cache(1)
    def made(size: int) -> str:
        return "{" + ",".join(f'"{n}":{item}' for n in range(size // (len(item) + 10))) + "}"

    return made


def just(value: str) -> Value:
    """The same at every size: as large as it may be, or odd."""
    return lambda size: value


zeros, ones, texts, lists, objects = repeat("0"), repeat("1"), repeat('"ab"'), repeat("[]"), repeat("{}")
numbers_by_key, texts_by_key = keys("1"), keys('"a"')
nan, infinite = just("NaN"), just("1e999")
highest_int, too_high = just(str(2**31 - 1)), just(str(2**64))
