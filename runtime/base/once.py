"""Values that are computed when they are first asked for, once, by any number of threads, and kept with an object."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")
Owner = TypeVar("Owner")
_LOCK = "_once_lock"


class once(Generic[T]):
    """functools.cached_property with a lock of each object.

    Python 3.11 has one lock for all objects of a class, so that reading one engine's tokenizer would hold up all
    others; Python 3.12 has none, so that two threads could compute the value twice.
    """

    def __init__(self, compute: Callable[[Any], T]):
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> once[T]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: object | None, owner: type) -> Any:
        if instance is None:
            return self
        return _computed_once(instance, self._name, self._compute)  # later reads find the attribute, and not this


def kept_with(owner: Owner, make: Callable[[Owner], T]) -> T:
    """What make(owner) returns. It is made once and kept as long as the owner lives."""
    return _computed_once(owner, f"{make.__module__}.{make.__qualname__}", make)


def _computed_once(instance: Owner, name: str, compute: Callable[[Owner], T]) -> T:
    values = vars(instance)  # can be written to even where the instance is a frozen dataclass
    with values.setdefault(_LOCK, threading.RLock()):  # one step of the interpreter, so all threads get the same
        if name not in values:
            values[name] = compute(instance)
        return values[name]
