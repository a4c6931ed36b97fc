"""Defines rules that give single matrices a format of their own: patterns of names of the checkpoint's weights.

A pattern is a name in which `*` stands for any characters, none and dots included. It has a dot or a `*`, and neither
comma, equals sign, quote nor space. Of the rules that match a name, the last one holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

_PATTERN = re.compile(r"[^\s,='\"\x00-\x1f]*[.*][^\s,='\"\x00-\x1f]*")
ANY = "*"


def is_pattern(text: str) -> bool:
    """Returns whether the text can be the pattern of a rule."""
    return _PATTERN.fullmatch(text) is not None


def matches(pattern: str, name: str) -> bool:
    """Returns whether the pattern matches the whole name. The time is that of one search through the name."""
    first, *others = pattern.split(ANY)
    if not others:
        return name == pattern
    *inner, last = others
    if not name.startswith(first) or not name.endswith(last) or len(name) < len(first) + len(last):
        return False
    at, end = len(first), len(name) - len(last)
    for part in inner:  # The first place of each part is as good as any later one.
        found = name.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


@dataclass(frozen=True)
class Rule(Generic[T]):
    """A pattern and what it gives to the names that it matches."""

    pattern: str
    value: T


class RuleTable(Generic[T]):
    """Rules in order. Looking up a name costs one comparison for each rule that has a `*`."""

    def __init__(self, rules: Sequence[Rule[T]]):
        self._literal = {rule.pattern: place for place, rule in enumerate(rules) if ANY not in rule.pattern}
        self._wild = [(place, rule.pattern) for place, rule in enumerate(rules) if ANY in rule.pattern]
        self._wild.reverse()
        self._rules = rules

    def find(self, name: str) -> Rule[T] | None:
        """Returns the last rule that matches the name."""
        literal = self._literal.get(name, -1)
        wild = next((place for place, pattern in self._wild if place > literal and matches(pattern, name)), -1)
        place = max(literal, wild)
        return self._rules[place] if place >= 0 else None

    def idle(self, names: Iterable[str]) -> list[str]:
        """Returns the patterns that match none of the names, overruled ones not among them."""
        known = list(dict.fromkeys(names))
        present = set(known)
        wild = [pattern for _, pattern in reversed(self._wild) if not any(matches(pattern, name) for name in known)]
        return [pattern for pattern in self._literal if pattern not in present] + wild
