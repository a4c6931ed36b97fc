"""Reads the keys that let clients in, with what each may do: its share, its bounds, and its rights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tensorwright.errors import InvalidOptionError
from tensorwright.number_checks import MAX_INT32
from tensorwright.options.server import HASHES, KEY_FIELDS, TOKENS, is_api_key
from tensorwright.runtime.base import request_bounds as bounds


@dataclass(frozen=True)
class ApiKey:
    """One key.

    weight: the share of the engine that the key's requests have where those of others wait too, next to the others'
    weights. priority: the priority of its requests, and the highest that they may ask for; None means 0, and
    --max-priority. tokens_per_minute: how many tokens of prompts and answers it may have; None means no bound.
    pinned_prefixes: how many prefixes it may have pinned; 0 means that it has no right to pin. cache_events: which
    events of the prefix cache it may read, HASHES or TOKENS; None means none.
    """

    key: str
    weight: float = 1.0
    priority: int | None = None
    tokens_per_minute: int | None = None
    pinned_prefixes: int = 0
    cache_events: str | None = None


def _read_weight(text: str) -> float:
    weight = float(text)
    if not bounds.WEIGHTS[0] <= weight <= bounds.WEIGHTS[1]:
        raise ValueError
    return weight


def _read_integer(text: str, low: int) -> int:
    number = int(text)
    if not low <= number <= MAX_INT32:
        raise ValueError
    return number


def _read_choice(text: str, choices: tuple[str, ...]) -> str:
    if text not in choices:
        raise ValueError
    return text


_READ: dict[str, tuple[Callable[[str], Any], str]] = {
    "weight": (_read_weight, f"a number from {bounds.WEIGHTS[0]:g} to {bounds.WEIGHTS[1]:g}"),
    "priority": (lambda text: _read_integer(text, -MAX_INT32), "a 32-bit integer"),
    "tokens_per_minute": (lambda text: _read_integer(text, 1), "a positive 32-bit integer"),
    "pinned_prefixes": (lambda text: _read_integer(text, 0), "0 or a positive 32-bit integer"),
    "cache_events": (lambda text: _read_choice(text, (HASHES, TOKENS)), f"{HASHES} or {TOKENS}"),
}
assert tuple(_READ) == KEY_FIELDS


def parse_key(text: str, where: str) -> ApiKey:
    """Reads a text such as "sk-team-a weight=4 priority=1 tokens_per_minute=60000".

    where: the place of the text, for errors. They are InvalidOptionErrors and show no key.
    """
    key, *words = text.split()
    if not is_api_key(key):
        raise InvalidOptionError(f"{where}: a key must be one or more printable ASCII characters without spaces")
    values: dict[str, Any] = {}
    for number, word in enumerate(words, start=1):
        name, equals, value = word.partition("=")
        if not equals or name not in _READ:
            # The word may be a part of a key with a space in it, so it is not shown.
            raise InvalidOptionError(
                f"{where}: a key must be without spaces, and behind it may stand NAME=VALUE with {', '.join(_READ)}; "
                f"word {number} behind it is neither"
            )
        if name in values:
            raise InvalidOptionError(f"{where}: {name} must be given once, got it twice")
        read, must = _READ[name]
        try:
            values[name] = read(value)
        except ValueError:
            raise InvalidOptionError(f"{where}: {name} must be {must}, got {value[:40]!r}") from None
    return ApiKey(key, **values)


def parse_keys(texts: tuple[str, ...]) -> tuple[ApiKey, ...]:
    """Reads all keys. A key that is given twice must be given alike."""
    keys = tuple(parse_key(text, "api_keys") if text.strip() else _no_key() for text in texts)
    if len(set(keys)) != len({key.key for key in keys}):
        raise InvalidOptionError("api_keys: a key that is given twice must have the same values both times")
    return keys


def _no_key() -> ApiKey:
    raise InvalidOptionError("api_keys: a key must be one or more printable ASCII characters without spaces")
