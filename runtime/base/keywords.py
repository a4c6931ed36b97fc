"""Refuses keywords that do not exist, and suggests the most similar names that do."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from tensorwright.errors import InvalidOptionError


def closest(name: str, known: Iterable[str]) -> str:
    """Returns a clause for an error: it names the known names most similar to `name`, or all known names."""
    known = sorted(known)
    begun = [other for other in known if len(name) > 2 and other.startswith(f"{name}_")]  # "stop" finds stop_token_ids
    near = begun or difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    return f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(known)}"


class StrictKeywords:
    """The base of classes whose constructor refuses an unknown keyword with InvalidOptionError.

    __new__ does the check, so callers and type checkers still see the typed signature of __init__.
    _elsewhere: for names that something else than this class has, a clause that says what.
    """

    _elsewhere: ClassVar[Mapping[str, str]] = {}

    def __new__(cls, *args: Any, **keywords: Any) -> Any:
        known = [name for name in inspect.signature(cls.__init__).parameters if name != "self"]
        for name in keywords:
            if name not in known:
                clause = cls._elsewhere.get(name) or closest(name, known)
                raise InvalidOptionError(f"{cls.__name__} has no option {name!r}; {clause}")
        return super().__new__(cls)
