"""Dataclasses out of JSON: every key must be there, none may be unknown, every value is of its field's type."""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints


def read_value(kind: Any, value: Any, where: str) -> Any:
    """`value`, as json.loads made it, as a `kind`: a dataclass, tuple[X, ...], dict[str, X], X | Y, int, str or None.

    ValueError names the place. What a dataclass's own __post_init__ raises passes through.
    """
    if is_dataclass(kind):
        return _read_dataclass(kind, value, where)
    if isinstance(kind, UnionType):
        found = next((one for one in get_args(kind) if _fits(one, value)), None)
        if found is None:
            raise _wrong(where, kind, value)
        return read_value(found, value, where)
    if not _fits(kind, value):
        raise _wrong(where, kind, value)
    if get_origin(kind) is tuple:
        return tuple(read_value(get_args(kind)[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if get_origin(kind) is dict:
        return {key: read_value(get_args(kind)[1], item, f"{where}.{key}") for key, item in value.items()}
    return value


def _fits(kind: Any, value: Any) -> bool:
    if get_origin(kind) is tuple:
        return isinstance(value, list)
    if get_origin(kind) is dict:
        return isinstance(value, dict)
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _read_dataclass(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise _wrong(where, kind, value)
    hints = get_type_hints(kind)
    unknown = sorted(value.keys() - hints.keys())
    if unknown:
        raise ValueError(f"{where}: unknown keys {', '.join(unknown)}")
    missing = [f.name for f in fields(kind) if f.name not in value and f.default is MISSING]
    if missing:
        raise ValueError(f"{where}: {', '.join(missing)} missing")
    return kind(**{key: read_value(hints[key], item, f"{where}.{key}") for key, item in value.items()})


def _wrong(where: str, kind: Any, value: Any) -> ValueError:
    return ValueError(f"{where} must be {getattr(kind, '__name__', kind)}, got {value!r}")
