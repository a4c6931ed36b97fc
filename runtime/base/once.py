"""Computes a value on its first use, once for all threads, and keeps it as long as the object that it belongs to."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")
Owner = TypeVar("Owner")
_LOCK = "_once_lock"


class once(Generic[T]):
    """A functools.cached_property with one lock for each object.

    Python 3.11 has one lock for all objects of a class, so a thread that reads one engine's tokenizer would block all
    other engines. Python 3.12 has no lock, so two threads could compute the value twice.
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
        # This stores the value as an attribute of the instance. Later reads find that attribute and do not come here.
        return _computed_once(instance, self._name, self._compute)


def kept_with(owner: Owner, make: Callable[[Owner], T]) -> T:
    """Returns the result of make(owner), which runs once. The result lives as long as the owner."""
    return _computed_once(owner, f"{make.__module__}.{make.__qualname__}", make)


def _computed_once(instance: Owner, name: str, compute: Callable[[Owner], T]) -> T:
    values = vars(instance)  # this dict can be written to even if the instance is a frozen dataclass
    if name in values:  # a value that is there never changes, so reading it needs no lock
        return values[name]
    with values.setdefault(_LOCK, threading.RLock()):  # setdefault is atomic, so all threads get the same lock
        if name not in values:
            values[name] = compute(instance)
        return values[name]
