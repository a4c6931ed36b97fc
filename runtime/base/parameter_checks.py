"""Checks of one value each. What is out of range raises InvalidRequestError with field, range and value."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sized
from numbers import Integral, Real
from typing import Any

from tensorwright.errors import InvalidRequestError
from tensorwright.runtime.base import request_bounds as bounds

MAX_INT32 = 2**31 - 1
SHOWN_CHARACTERS = 200
MAX_WORDS = 600  # characters of somebody else's message
SHOWN_WEIGHT = 10_000
"""Of a value that is spelled out to be shown: to spell 4 MiB takes 100 ms, in which no other thread runs."""


def shown(value: Any) -> str:
    """The value as an error shows it: a short one whole, of a long one the beginning or only its size."""
    if isinstance(value, (list, tuple, dict, set, frozenset)) and len(value) > SHOWN_CHARACTERS:
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, (str, bytes)):
        value = value[: SHOWN_CHARACTERS + 1]
    if not weigh(value, SHOWN_WEIGHT, characters=True):
        return f"a {type(value).__name__} too large to show"
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of over 4300 digits, a list in itself many times over
        return f"a {type(value).__name__} too large to show"
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "..."


def clipped(words: str) -> str:
    """What others say of a request (llguidance of a grammar, a template of messages), as our messages tell it: they
    quote at length what clients sent, which may be no Unicode text."""
    text = words[: MAX_WORDS + 1].encode("utf-8", "backslashreplace").decode()
    return text if len(words) <= MAX_WORDS else text[:MAX_WORDS] + "..."


def weigh(value: Any, most: int, characters: bool) -> bool:
    """Whether a value, with all that is in it, is at most so many values; characters: those of its texts count too.
    It looks no further than that."""
    waiting, weight = [value], 0
    while waiting and weight <= most:
        part = waiting.pop()
        weight += 1
        if isinstance(part, (str, bytes)):
            weight += len(part) * characters
        elif isinstance(part, dict):
            waiting += (*part, *part.values()) if characters else part.values()
        elif isinstance(part, (list, tuple, set, frozenset)):
            waiting += part
    return weight <= most


def check(name: str, value: Any, holds: bool, must: str) -> None:
    if not holds:
        raise InvalidRequestError(f"SamplingParams: {name} must be {must}, got {shown(value)}")


def check_count(name: str, value: Sized, most: int, what: str) -> None:
    """what: the name of its parts, in the plural."""
    if len(value) > most:
        raise InvalidRequestError(f"SamplingParams: {name} must have at most {most} {what}, got {len(value)}")


def is_int(value: Any) -> bool:
    """numpy integers count; True does not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_int(name: str, value: Any, low: int, high: int, must: str) -> None:
    check(name, value, is_int(value) and low <= int(value) <= high, must)


def check_range(name: str, value: Any, low: float, high: float) -> None:
    check(name, value, low <= real(value) <= high, f"a number from {low:g} to {high:g}")


def real(value: Any) -> float:
    """The number, or NaN (which no range admits) when it is none, or an integer that no float can hold."""
    try:
        return float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:
        return math.nan


def token_ids(name: str, value: Any, most: int) -> tuple[int, ...]:
    """As a tuple, so that it hashes. most: ids."""
    check(name, value, isinstance(value, (list, tuple)), "a list of token ids")
    check_count(name, value, most, "token ids")
    for token in value:
        check_int(name, token, 0, MAX_INT32, "a list of token ids >= 0")
    return tuple(int(token) for token in value)


def biases(name: str, value: Any) -> tuple[tuple[int, float], ...]:
    """{token: bias}, or such pairs as this returns, sorted."""
    must = f"a dict of token ids and numbers from {-bounds.MAX_BIAS:g} to {bounds.MAX_BIAS:g}, or -inf"
    pairs: Iterable[Any] = () if value is None else value.items() if isinstance(value, dict) else value
    check(name, value, isinstance(value, (dict, tuple, type(None))), must)
    check_count(name, value or (), bounds.LOGIT_BIASES, "entries")
    result = {}
    for pair in pairs:
        check(name, pair, isinstance(pair, tuple) and len(pair) == 2 and is_int(pair[0]), must)
        check(name, pair, 0 <= pair[0] <= MAX_INT32, must)
        check(name, pair, abs(real(pair[1])) <= bounds.MAX_BIAS or real(pair[1]) == -math.inf, must)
        result[int(pair[0])] = float(pair[1])
    return tuple(sorted(result.items()))


def words(name: str, value: Any) -> tuple[str | tuple[int, ...], ...]:
    """Texts or lists of token ids, none of them empty."""
    must = "a list of texts and lists of token ids, none empty"
    check(name, value, isinstance(value, (list, tuple)), must)
    check_count(name, value, bounds.BAD_WORDS, "entries")
    for word in value:
        check(name, word, isinstance(word, (str, list, tuple)) and len(word) > 0, must)
        if isinstance(word, str):
            check_count(f"a text in {name}", word, bounds.BAD_WORD_LENGTH, "characters")
    most = bounds.BAD_WORD_TOKENS
    return tuple(word if isinstance(word, str) else token_ids(f"an entry of {name}", word, most) for word in value)


def salt(name: str, value: Any) -> None:
    """None, or a text that is not empty: that would look like none."""
    must = f"a text of 1 to {bounds.SALT_LENGTH} characters, or None"
    check(name, value, value is None or (isinstance(value, str) and 1 <= len(value) <= bounds.SALT_LENGTH), must)
    check(name, value, value is None or not any("\ud800" <= letter <= "\udfff" for letter in value), "valid Unicode")


def texts(name: str, value: Any) -> tuple[str, ...]:
    """One text or several, none of them empty."""
    must = "a text or a list of texts, none empty"
    value = () if value is None else (value,) if isinstance(value, str) else value
    check(name, value, isinstance(value, (list, tuple)), must)
    check_count(name, value, bounds.STOP_STRINGS, "texts")
    for text in value:
        check(name, text, isinstance(text, str) and len(text) > 0, must)
        check_count(f"a text in {name}", text, bounds.STOP_LENGTH, "characters")
    return tuple(value)
