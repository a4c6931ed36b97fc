"""Checks single parameters. A value out of range raises InvalidRequestError with the field, the range and the value."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sized
from typing import Any

from tensorwright.errors import InvalidRequestError
from tensorwright.number_checks import MAX_INT32, is_int, real
from tensorwright.runtime.base import request_bounds as bounds

SHOWN_CHARACTERS = 200
QUOTED_CHARACTERS = 600
"""The most characters of somebody else's message that our messages quote."""
SHOWN_WEIGHT = 10_000
"""The greatest weight (see `weigh`) of a value that repr() spells out. To spell 4 MiB takes 100 ms, in which no other
thread runs."""


def shown(value: Any) -> str:
    """Returns the value as an error shows it: a short value whole, of a long one the beginning or only its size."""
    if isinstance(value, (list, tuple, dict, set, frozenset)) and len(value) > SHOWN_CHARACTERS:
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, (str, bytes)):
        value = value[: SHOWN_CHARACTERS + 1]
    if not weigh(value, SHOWN_WEIGHT, characters=True):
        return f"a {type(value).__name__} too large to show"
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # for example an integer of over 4300 digits, or a deeply nested list
        return f"a {type(value).__name__} too large to show"
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "..."


def clipped(words: str) -> str:
    """Returns somebody else's message about a request, shortened and valid Unicode, for a message of ours.

    Such messages (llguidance's about a grammar, a template's about chat messages) quote at length what clients sent,
    which may not be valid Unicode.
    """
    text = words[: QUOTED_CHARACTERS + 1].encode("utf-8", "backslashreplace").decode()
    return text if len(words) <= QUOTED_CHARACTERS else text[:QUOTED_CHARACTERS] + "..."


def weigh(value: Any, most: int, characters: bool) -> bool:
    """Whether the value and everything inside it add up to at most `most` values. It stops as soon as there are more.

    characters: True counts the characters of texts too.
    """
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
    """Raises InvalidRequestError for more than `most` parts. what: the name of the parts, in the plural."""
    if len(value) > most:
        raise InvalidRequestError(f"SamplingParams: {name} must have at most {most} {what}, got {len(value)}")


def check_int(name: str, value: Any, low: int, high: int, must: str) -> None:
    check(name, value, is_int(value) and low <= int(value) <= high, must)


def check_range(name: str, value: Any, low: float, high: float) -> None:
    check(name, value, low <= real(value) <= high, f"a number from {low:g} to {high:g}")


def token_ids(name: str, value: Any, most: int) -> tuple[int, ...]:
    """Checks a list of token ids and returns it as a tuple, which is hashable. most: the most ids that it may have."""
    check(name, value, isinstance(value, (list, tuple)), "a list of token ids")
    check_count(name, value, most, "token ids")
    for token in value:
        check_int(name, token, 0, MAX_INT32, "a list of token ids >= 0")
    return tuple(int(token) for token in value)


def biases(name: str, value: Any) -> tuple[tuple[int, float], ...]:
    """Checks biases, {token: bias} or the pairs that this function returns, and returns (token, bias) pairs, sorted."""
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
    """Checks a list of texts and lists of token ids, none of them empty, and returns it as a tuple."""
    must = "a list of texts and lists of token ids, none empty"
    check(name, value, isinstance(value, (list, tuple)), must)
    check_count(name, value, bounds.BAD_WORDS, "entries")
    for word in value:
        check(name, word, isinstance(word, (str, list, tuple)) and len(word) > 0, must)
        if isinstance(word, str):
            check_count(f"a text in {name}", word, bounds.BAD_WORD_LENGTH, "characters")
    most = bounds.BAD_WORD_TOKENS
    return tuple(word if isinstance(word, str) else token_ids(f"an entry of {name}", word, most) for word in value)


def callables(name: str, value: Any) -> tuple[Callable[..., Any], ...]:
    """Checks a list of functions, and returns it as a tuple."""
    must = "a list of functions of token ids and logits"
    check(name, value, isinstance(value, (list, tuple)), must)
    check_count(name, value, bounds.LOGITS_PROCESSORS, "functions")
    for each in value:
        check(name, each, callable(each), must)
    return tuple(value)


def salt(name: str, value: Any) -> None:
    """Checks a salt: None, or a text that is not empty, because an empty text would look like no salt."""
    must = f"a text of 1 to {bounds.SALT_LENGTH} characters, or None"
    check(name, value, value is None or (isinstance(value, str) and 1 <= len(value) <= bounds.SALT_LENGTH), must)
    check(name, value, value is None or not any("\ud800" <= letter <= "\udfff" for letter in value), "valid Unicode")


def texts(name: str, value: Any, most: int = bounds.STOP_STRINGS, longest: int = bounds.STOP_LENGTH) -> tuple[str, ...]:
    """Checks one text or several, none of them empty, and returns them as a tuple.

    most: the most texts. longest: the most characters of each.
    """
    must = "a text or a list of texts, none empty"
    value = () if value is None else (value,) if isinstance(value, str) else value
    check(name, value, isinstance(value, (list, tuple)), must)
    check_count(name, value, most, "texts")
    for text in value:
        check(name, text, isinstance(text, str) and len(text) > 0, must)
        check_count(f"a text in {name}", text, longest, "characters")
    return tuple(value)
