"""Changes of the values in a JSON text, which a change of its bytes seldom is. Of several lines, one may be such."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

from fuzz.words import NAMES

VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2, 255, 257, 2**31 - 1, 2**31, 2**53, 2**64 - 1, 2**64, -(2**63), 10**300, 0.5, -0.0,
    1e308, 5e-324, float("nan"), float("inf"), float("-inf"), "", "a", " ", "\0", "\ud800", "\U0001f600", "x" * 300,
    "0", "-1", [], {}, [0], [[]], ["a"], {"a": 1}, [1] * 300, {"type": "object"}, {"content": "a"},
]  # fmt: skip
Place = tuple[Any, Any]  # a list or an object, and an index or a key of it


def changed(data: bytes, most: int, seed: int) -> bytes | None:
    """None if there is no JSON in it, or no room."""
    draw = random.Random(seed)
    lines = data.split(b"\n")
    at = draw.choice([None, *range(len(lines))]) if len(lines) > 1 else None
    try:
        root = [json.loads(data if at is None else lines[at])]
    except (ValueError, RecursionError):
        return None
    for _ in range(draw.choice((1, 1, 2, 4))):
        _change(draw, root)
    text = json.dumps(root[0], ensure_ascii=draw.random() < 0.5).encode("utf-8", "surrogatepass")
    whole = text if at is None else b"\n".join([*lines[:at], text, *lines[at + 1 :]])
    return whole if len(whole) <= most else None


def _change(draw: random.Random, root: list[Any]) -> None:
    places = _places(root)
    holder, key = draw.choice(places)
    other, its = draw.choice(places)
    value = copy.deepcopy(draw.choice([draw.choice(VALUES), draw.choice(VALUES), other[its], draw.choice(NAMES)]))
    kind = draw.randrange(5)
    if kind == 0 and holder is not root:
        del holder[key]
    elif kind == 1 and isinstance(holder[key], dict):
        holder[key][draw.choice(NAMES)] = value
    elif kind == 1 and isinstance(holder[key], list):
        holder[key].insert(draw.randint(0, len(holder[key])), value)
    elif kind == 2:
        holder[key] = [holder[key]] if draw.random() < 0.5 else {draw.choice(NAMES): holder[key]}
    elif kind == 3 and isinstance(holder[key], int | float):
        holder[key] = holder[key] * 2 if draw.random() < 0.3 else holder[key] + draw.choice((-1, 1))
    else:
        holder[key] = value


def _places(root: list[Any]) -> list[Place]:
    found: list[Place] = [(root, 0)]
    for holder, key in found:
        value = holder[key]
        inner = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
        found += [(value, each) for each in inner]
    return found
