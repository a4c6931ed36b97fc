"""The fields and parameters that a server's OpenAPI document declares, against the rows of fields.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hostile.fields import BODIES

Declarations = dict[str, dict[str, list[Any]]]
"""By endpoint and the path of a field, or the name of a parameter: its schemas, without what is only said of it."""


def declared(document: Mapping[str, Any]) -> Declarations:
    """Returns what an OpenAPI document declares: all fields of bodies, and all parameters."""
    found: Declarations = {}
    for endpoint, methods in document["paths"].items():
        own = found.setdefault(endpoint, {})
        for operation in methods.values():
            own |= {parameter["name"]: [] for parameter in operation.get("parameters", ())}
            content = operation.get("requestBody", {}).get("content", {})
            for kind in content.values():
                for path, schema in _fields(document, kind["schema"], ""):
                    own.setdefault(path, []).append(schema)
    return found


def _fields(document: Mapping[str, Any], node: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    if "$ref" in node:
        node = document["components"]["schemas"][node["$ref"].rsplit("/", 1)[1]]
    for name in ("anyOf", "oneOf", "allOf"):
        for option in node.get(name, ()):
            yield from _fields(document, option, path)
    if "items" in node:
        yield from _fields(document, node["items"], path + "[]")
    for name, inner in node.get("properties", {}).items():
        own = f"{path}.{name}" if path else name
        yield own, {key: value for key, value in inner.items() if key not in ("title", "description")}
        yield from _fields(document, inner, own)


def unshared(found: Declarations) -> list[str]:
    """Returns the fields of `shared` rows that no field of the same name and declaration is attacked for."""
    attacked: dict[str, list[Any]] = {}
    for endpoint, table in BODIES.items():
        for path, values in table.items():
            if values:
                attacked.setdefault(_last(path), []).append(found[endpoint][path])
    return [
        f"{endpoint} {path}"
        for endpoint, table in BODIES.items()
        for path, values in table.items()
        if not values and found[endpoint][path] not in attacked.get(_last(path), ())
    ]


def _last(path: str) -> str:
    return path.rsplit(".", 1)[-1]
