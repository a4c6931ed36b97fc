"""Reads who sends the requests of a simulation: shares of the traffic, and what each tenant has in the scheduler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorwright.durations import parse_duration
from tensorwright.errors import InvalidOptionError
from tensorwright.number_checks import MAX_INT32
from tensorwright.options.simulate import MAX_TENANTS, TENANT_FIELDS
from tensorwright.runtime.base import request_bounds as bounds

MAX_NAME = 64


@dataclass(frozen=True)
class Tenant:
    """One who sends requests. share: of the requests, next to the others' shares. weight, priority: those of its
    requests, as SamplingParams has them. deadline: seconds within which they must end; None means none."""

    name: str
    share: float = 1.0
    weight: float = 1.0
    priority: int = 0
    deadline: float | None = None


def tenants_of(texts: Sequence[str], count: int) -> tuple[Tenant, ...]:
    """Returns the tenants. texts: one for each, such as "product share=1 weight=4 priority=1 deadline=30s"; without
    any there are `count`, of which the second sends half as much as the first, and so on. Raises InvalidOptionError."""
    if not texts:
        return tuple(Tenant(str(number), 1.0 / number) for number in range(1, count + 1))
    if count != 1:
        raise InvalidOptionError("--tenant says who the tenants are: leave out --tenants")
    if len(texts) > MAX_TENANTS:
        raise InvalidOptionError(f"--tenant: there may be at most {MAX_TENANTS} tenants, got {len(texts)}")
    tenants = tuple(_read(text) for text in texts)
    if len({tenant.name for tenant in tenants}) != len(tenants):
        raise InvalidOptionError("--tenant: each tenant must have a name of its own")
    return tenants


def shares_of(tenants: Sequence[Tenant]) -> np.ndarray:
    """Returns the share of the requests that each tenant sends, float64 [tenants], 1 in all."""
    shares = np.array([tenant.share for tenant in tenants])
    return np.asarray(shares / shares.sum())


def _number(low: float, high: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        number = float(text)
        if not low <= number <= high:
            raise ValueError
        return number

    return read


def _integer(text: str) -> int:
    number = int(text)
    if not -MAX_INT32 <= number <= MAX_INT32:
        raise ValueError
    return number


def _seconds(text: str) -> float:
    try:
        seconds = parse_duration(text, "deadline")
    except InvalidOptionError as error:
        raise ValueError from error
    return _number(0, bounds.MAX_TIMEOUT)(str(seconds))


_SHARES = (1e-6, 1e6)
_READ: dict[str, tuple[Callable[[str], Any], str]] = {
    "share": (_number(*_SHARES), f"a number from {_SHARES[0]:g} to {_SHARES[1]:g}"),
    "weight": (_number(*bounds.WEIGHTS), f"a number from {bounds.WEIGHTS[0]:g} to {bounds.WEIGHTS[1]:g}"),
    "priority": (_integer, "a 32-bit integer"),
    "deadline": (_seconds, "a time such as 30s"),
}
assert tuple(_READ) == TENANT_FIELDS


def _read(text: str) -> Tenant:
    name, *words = text.split() or [""]
    if not name or "=" in name or len(name) > MAX_NAME:
        raise InvalidOptionError(
            f"--tenant must begin with a name of 1 to {MAX_NAME} characters without =, as in 'product share=1', got "
            f"{text[:80]!r}"
        )
    values: dict[str, Any] = {}
    for word in words:
        field, equals, value = word.partition("=")
        if not equals or field not in _READ or field in values:
            raise InvalidOptionError(
                f"--tenant {name}: behind the name may stand, once each, NAME=VALUE with {', '.join(_READ)}, got "
                f"{word[:80]!r}"
            )
        read, must = _READ[field]
        try:
            values[field] = read(value)
        except ValueError:
            raise InvalidOptionError(f"--tenant {name}: {field} must be {must}, got {value[:40]!r}") from None
    return Tenant(name, **values)
