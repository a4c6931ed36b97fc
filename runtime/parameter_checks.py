"""Checks of one value each. What is out of range raises InvalidRequestError with field, range and value."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

from tensorwright.errors import InvalidRequestError

MAX_INT32 = 2**31 - 1
MAX_BIAS = 1e6
SALT_LENGTH = 256
"""Characters of `cache_salt`."""


def check(name: str, value: Any, holds: bool, must: str) -> None:
    if not holds:
        raise InvalidRequestError(f"SamplingParams: {name} must be {must}, got {value!r}")


def is_int(value: Any) -> bool:
    """numpy integers count; True does not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_int(name: str, value: Any, low: int, high: int, must: str) -> None:
    check(name, value, is_int(value) and low <= int(value) <= high, must)


def check_range(name: str, value: Any, low: float, high: float) -> None:
    check(name, value, low <= real(value) <= high, f"a number from {low:g} to {high:g}")


def real(value: Any) -> float:
    """The number, or NaN (which no range admits) when it is none."""
    return float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan


def token_ids(name: str, value: Any) -> tuple[int, ...]:
    """As a tuple, so that it hashes."""
    check(name, value, isinstance(value, (list, tuple)), "a list of token ids")
    for token in value:
        check_int(name, token, 0, MAX_INT32, "a list of token ids >= 0")
    return tuple(int(token) for token in value)


def biases(name: str, value: Any) -> tuple[tuple[int, float], ...]:
    """{token: bias}, or such pairs as this returns, sorted."""
    must = f"a dict of token ids and numbers from {-MAX_BIAS:g} to {MAX_BIAS:g}, or -inf"
    pairs: Iterable[Any] = () if value is None else value.items() if isinstance(value, dict) else value
    check(name, value, isinstance(value, (dict, tuple, type(None))), must)
    result = {}
    for pair in pairs:
        check(name, pair, isinstance(pair, tuple) and len(pair) == 2 and is_int(pair[0]) and pair[0] >= 0, must)
        check(name, pair, abs(real(pair[1])) <= MAX_BIAS or real(pair[1]) == -math.inf, must)
        result[int(pair[0])] = float(pair[1])
    return tuple(sorted(result.items()))


def words(name: str, value: Any) -> tuple[str | tuple[int, ...], ...]:
    """Texts or lists of token ids, none of them empty."""
    must = "a list of texts and lists of token ids, none empty"
    check(name, value, isinstance(value, (list, tuple)), must)
    for word in value:
        check(name, word, isinstance(word, (str, list, tuple)) and len(word) > 0, must)
    return tuple(word if isinstance(word, str) else token_ids(name, word) for word in value)


def salt(name: str, value: Any) -> None:
    """None, or a text that is not empty: that would look like none."""
    must = f"a text of 1 to {SALT_LENGTH} characters, or None"
    check(name, value, value is None or (isinstance(value, str) and 1 <= len(value) <= SALT_LENGTH), must)
    check(name, value, value is None or not any("\ud800" <= letter <= "\udfff" for letter in value), "valid Unicode")


def texts(name: str, value: Any) -> tuple[str, ...]:
    """One text or several, none of them empty."""
    must = "a text or a list of texts, none empty"
    value = () if value is None else (value,) if isinstance(value, str) else value
    check(name, value, isinstance(value, (list, tuple)), must)
    for text in value:
        check(name, text, isinstance(text, str) and len(text) > 0, must)
    return tuple(value)
