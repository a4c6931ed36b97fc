"""An attribute that is computed when it is first asked for, once, whoever asks and in however many threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")
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
        values = vars(instance)  # it is not frozen in a frozen dataclass, and later looks at it never come here
        with values.setdefault(_LOCK, threading.RLock()):  # one step of the interpreter, so all threads get the same
            if self._name not in values:
                values[self._name] = self._compute(instance)
            return values[self._name]
