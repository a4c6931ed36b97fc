"""Takes fields that this server does not know, or that change nothing, out of a body, and tells the client of them.

Clients and libraries send new fields of OpenAI's API before servers have them. A server that runs with --strict refuses
them instead. Fields with impossible values are errors in both cases.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, get_args

from pydantic import BaseModel

from tensorwright.runtime.base import request_bounds as bounds
from tensorwright.runtime.serving.server.request_fields import Ignorable

HEADER = "x-tensorwright-ignored"
"""The header of an answer that names the fields of the request that were left out."""
MAX_NAMES = 20
"""The most fields that the header names."""
_SHOWN = re.compile(r"[A-Za-z0-9_.\[\]-]{1,100}")


def leave_out(value: Any, model: type[BaseModel]) -> list[str]:
    """Removes the fields of a parsed body that do not count, and returns their names, such as "messages[].annotations".

    Each name is returned once. A part of a body with too many keys is left as it is, for the model refuses it. The time
    is linear in the number of keys.
    """
    found: dict[str, None] = {}
    _prune(value, model, "", found)
    return list(found)


def describe(names: list[str]) -> str:
    """Returns the value of the header. A name that may not stand in a header is left out of it."""
    shown = [name if _SHOWN.fullmatch(name) else "(unprintable)" for name in names[:MAX_NAMES]]
    more = len(names) - len(shown)
    return ", ".join([*shown, *([f"and {more} more"] if more > 0 else [])])


def _prune(value: Any, model: type[BaseModel], place: str, found: dict[str, None]) -> None:
    if not isinstance(value, dict) or len(value) > bounds.BODY_KEYS:
        return
    fields = _fields(model)
    for key in list(value):
        field = fields.get(key)
        if field is None or (field.taken is not None and not _is_taken(value[key], field.taken)):
            found[f"{place}{key}"] = None
            del value[key]
        elif field.models:
            part = value[key]
            inner = f"{place}{key}[]." if isinstance(part, list) else f"{place}{key}."
            for each in part if isinstance(part, list) else [part]:
                _prune(each, field.models[0], inner, found)


class _FieldShape:
    """What leaving out needs of a field. taken: the values that an ignorable field takes, None for other fields.
    models: the model of the objects in it, or none."""

    def __init__(self, annotation: Any, metadata: list[Any]):
        marks = [mark for mark in (*metadata, *_marks(annotation)) if isinstance(mark, Ignorable)]
        self.taken = marks[0].taken if marks else None
        self.models = _models(annotation)


@lru_cache(maxsize=64)
def _fields(model: type[BaseModel]) -> dict[str, _FieldShape]:
    return {
        field.alias or name: _FieldShape(field.annotation, field.metadata) for name, field in model.model_fields.items()
    }


def _is_taken(value: Any, taken: tuple[Any, ...]) -> bool:
    return any(value is each or (isinstance(value, str) and value == each) for each in taken)


def _marks(annotation: Any) -> list[Any]:
    return list(getattr(annotation, "__metadata__", ()))


def _models(annotation: Any) -> list[type[BaseModel]]:
    """Returns the models in an annotation. A field has objects of one model at most."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    found = {model for part in get_args(annotation) for model in _models(part)}
    assert len(found) <= 1, f"a field has objects of several models: {found}"
    return list(found)
