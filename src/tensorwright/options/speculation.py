"""Declares what a user can say of speculation: the proposer of tokens, and what it takes.

"ngram"    "ngram,tokens=4"    {"method": "ngram", "tokens": "auto", "min_match": 3}    "none"
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from tensorwright.errors import InvalidOptionError
from tensorwright.number_checks import is_int

MAX_TOKENS = 16
"""The most tokens that are proposed for a sequence in one step. runtime/core has the same number."""
MAX_ROWS = 4096
AUTO = "auto"
METHODS: dict[str, tuple[str, ...]] = {"ngram": ("tokens", "rows", "min_match")}
"""The proposers, and the names of what each takes."""
MUST = (
    'one of none, ngram, or a method and what it takes, such as "ngram,tokens=4,min_match=3" or {"method": "ngram", '
    '"tokens": "auto"}'
)


@dataclass(frozen=True)
class Speculation:
    """What proposes tokens.

    tokens: how many are proposed for each sequence in a step; 0 means as many as pay. rows: the most that are proposed
    in a step for all sequences; each takes the memory of a row of logits. min_match: the tokens that must be equal
    before a text is thought to go on as it did before.
    """

    method: str
    tokens: int = 0
    rows: int = 64
    min_match: int = 2


NUMBERS = {"tokens": (1, MAX_TOKENS), "rows": (1, MAX_ROWS), "min_match": (2, 32)}
"""The least and the greatest value of each number."""


def read_speculation(value: Any, prefix: str = "") -> Speculation | None:
    """Returns what the user says; None without a proposer. Raises InvalidOptionError."""
    if value is None or value == "none":
        return None
    given = dict(value) if isinstance(value, Mapping) else _read_text(value, prefix)
    method = given.pop("method", None)
    if method not in METHODS:
        raise InvalidOptionError(f"{prefix}speculative must be {MUST}, got method {method!r}")
    unknown = [name for name in given if name not in METHODS[method]]
    if unknown:
        takes = f"method {method} takes {', '.join(METHODS[method])}"
        raise InvalidOptionError(f"{prefix}speculative: {takes}, not {', '.join(map(str, unknown))}")
    numbers = {name: _number(name, text, prefix) for name, text in given.items()}
    return Speculation(method, **numbers)


def write_speculation(speculation: Speculation) -> str:
    """Returns the text from which read_speculation reads the same."""
    usual = Speculation(speculation.method)
    given = [
        f"{part.name}={getattr(speculation, part.name)}"
        for part in fields(Speculation)
        if getattr(speculation, part.name) != getattr(usual, part.name)
    ]
    return ",".join([speculation.method, *given])


def _read_text(value: Any, prefix: str) -> dict[str, Any]:
    if not isinstance(value, str):
        raise InvalidOptionError(f"{prefix}speculative must be {MUST}, got {value!r}")
    method, *rest = (part.strip() for part in value.split(","))
    given: dict[str, Any] = {"method": method}
    for part in rest:
        name, equals, text = part.partition("=")
        if not equals or name.strip() in given:
            raise InvalidOptionError(f"{prefix}speculative must be {MUST}, got {part!r} in {value!r}")
        given[name.strip()] = text.strip()
    return given


def _number(name: str, value: Any, prefix: str) -> int:
    low, high = NUMBERS[name]
    if name == "tokens" and value == AUTO:
        return 0
    number = int(value) if isinstance(value, str) and value.isdecimal() else value
    if not is_int(number) or not low <= number <= high:
        either = f"{AUTO} or " if name == "tokens" else ""
        raise InvalidOptionError(
            f"{prefix}speculative: {name} must be {either}a whole number from {low} to {high}, got {value!r}"
        )
    return int(number)
