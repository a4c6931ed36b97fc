"""Reads dataclasses from JSON and writes them. Every key must exist and be known, and have a value of its field's type.

A field with the metadata OPTIONAL may be absent. It is then None, and None is not written. A field with the metadata
`as_text(parse)` is a text in JSON.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from tensorwright.engine_format.checksums import REMEDY
from tensorwright.errors import EngineError
from tensorwright.json_text import read_json

OPTIONAL = {"optional": True}


def as_text(parse: Callable[[str], Any]) -> dict[str, Any]:
    """Returns the metadata of a field that str() writes and `parse` reads. An error of `parse` passes through."""
    return {"parse": parse}


def read_object(path: Path, data: bytes) -> dict[str, Any]:
    """Reads the JSON object in `data`, the content of the file `path`. Raises EngineError if there is none."""
    try:
        value = read_json(data)
    except ValueError as error:
        raise EngineError(f"{path}: truncated or altered, not readable as JSON ({error}); {REMEDY}") from error
    if not isinstance(value, dict):
        raise EngineError(f"{path}: must hold a JSON object; {REMEDY}")
    return value


def read_value(kind: Any, value: Any, where: str) -> Any:
    """Returns `value`, as json.loads made it, as a `kind`.

    A kind is a dataclass, tuple[X, ...], list[X], dict[str, X], X | Y, bool, int, float, str, None or Any. Raises
    ValueError, which names the place. An error of a dataclass's own __post_init__ passes through.
    """
    if kind is Any:
        return value
    if is_dataclass(kind):
        return _read_dataclass(kind, value, where)
    if isinstance(kind, UnionType):
        found = next((one for one in get_args(kind) if fits(one, value)), None)
        if found is None:
            raise _wrong(where, kind, value)
        return read_value(found, value, where)
    if not fits(kind, value):
        raise _wrong(where, kind, value)
    if get_origin(kind) in (tuple, list):
        items = (read_value(get_args(kind)[0], item, f"{where}[{i}]") for i, item in enumerate(value))
        return list(items) if get_origin(kind) is list else tuple(items)
    if get_origin(kind) is dict:
        return {key: read_value(get_args(kind)[1], item, f"{where}.{key}") for key, item in value.items()}
    return value


def write_value(value: Any) -> Any:
    """Returns `value` with each dataclass as a dict in the order of its fields. Other values stay as they are."""
    if is_dataclass(value):
        pairs = ((one, getattr(value, one.name)) for one in fields(value))
        kept = ((one, item) for one, item in pairs if item is not None or one.metadata != OPTIONAL)
        return {one.name: str(item) if "parse" in one.metadata else write_value(item) for one, item in kept}
    if isinstance(value, dict):
        return {key: write_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [write_value(item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return value


def fits(kind: Any, value: Any) -> bool:
    """Whether the JSON value is of the type that a `kind` has in JSON. What is inside the value is not looked at."""
    if isinstance(kind, UnionType):
        return any(fits(one, value) for one in get_args(kind))
    if is_dataclass(kind) or get_origin(kind) is dict:
        return isinstance(value, dict)
    if get_origin(kind) in (tuple, list):
        return isinstance(value, list)
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _read_dataclass(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise _wrong(where, kind, value)
    hints = get_type_hints(kind)
    unknown = sorted(value.keys() - hints.keys())
    if unknown:
        raise ValueError(f"{where}: unknown keys {', '.join(unknown)}")
    missing = [one.name for one in fields(kind) if one.name not in value and one.default is MISSING]
    if missing:
        raise ValueError(f"{where}: {', '.join(missing)} missing")
    parsers = {one.name: one.metadata["parse"] for one in fields(kind) if "parse" in one.metadata}
    values = {}
    for key, item in value.items():
        read = read_value(str if key in parsers else hints[key], item, f"{where}.{key}")
        values[key] = parsers[key](read) if key in parsers else read
    return kind(**values)


def _wrong(where: str, kind: Any, value: Any) -> ValueError:
    return ValueError(f"{where} must be {getattr(kind, '__name__', kind)}, got {value!r}")
