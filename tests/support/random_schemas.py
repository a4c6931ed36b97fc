"""Random JSON schemas: mostly of what guided decoding can follow, some of what it must refuse."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]
WORDS = ("name", "id", "size", "tag list", "größe", "a/b", "x-y", "is_ok", 'quo"te', "n")
PATTERNS = ("[a-z]{2,5}", "^\\d{3}-\\d{4}$", "^(ab|cd)+$", "^[A-Z][a-z]*$", "^.{1,4}$", "x")
FORMATS = ("date", "time", "date-time", "uuid", "ipv4", "email")
REFUSED: tuple[Schema, ...] = (
    {"not": {"type": "string"}},
    {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
    {"type": "object", "propertyNames": {"maxLength": 3}},
    {"if": {"type": "string"}, "then": {"minLength": 2}},
    {"type": "object", "unevaluatedProperties": False},
    {"type": "array", "contains": {"type": "integer"}},
    {"type": "string", "pattern": "(?=a)b"},
    {"type": "string", "pattern": "(a"},
    {"type": "string", "format": "banana"},
    {"type": "thing"},
    {"$ref": "#/$defs/absent"},
    {"type": "integer", "minimum": 9, "maximum": 3},
    {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 4},
    {"type": "string", "minLength": 5, "maxLength": 2},
    {"type": "array", "minItems": 3, "maxItems": 1},
    {"allOf": [{"type": "string"}, {"type": "integer"}]},
    {"enum": []},
)


class SchemaMaker:
    """Of one seed. Sizes are bounded, so that most outputs end within a few dozen tokens."""

    def __init__(self, seed: int):
        self._random = random.Random(seed)

    def schema(self) -> tuple[Schema, bool]:
        """And whether it must be refused."""
        schema = self._any(3)
        refused = self._random.random() < 0.15
        if refused:
            schema = self._with_part(self._random.choice(REFUSED))
        elif self._random.random() < 0.15:
            schema = self._with_references()
        return schema, refused

    def _any(self, depth: int) -> Schema:
        leaves: list[Callable[[], Schema]] = [
            self._integer, self._number, self._string, self._enum, self._const, self._simple,
        ]  # fmt: skip
        inner: list[Callable[[int], Schema]] = [self._object, self._object, self._array, self._tuple, self._any_of]
        if depth == 0 or self._random.random() < 0.3:
            return self._random.choice(leaves)()
        return self._random.choice(inner)(depth - 1)

    def _simple(self) -> Schema:
        return {"type": self._random.choice(["boolean", "null", ["boolean", "null"]])}

    def _integer(self) -> Schema:
        low = self._random.randint(-2000, 2000)
        high = low + self._random.choice([0, 1, 7, 500])
        bounds = [
            {"minimum": low, "maximum": high},
            {"exclusiveMinimum": low, "maximum": high + 1},
            {"minimum": 0, "maximum": 99, "multipleOf": self._random.choice([2, 5, 10])},
        ]
        return {"type": "integer", **self._random.choice(bounds)}

    def _number(self) -> Schema:
        low = round(self._random.uniform(-50, 50), 2)
        return {"type": "number", "minimum": low, "maximum": round(low + self._random.choice([0.25, 10, 300]), 2)}

    def _string(self) -> Schema:
        kind = self._random.randrange(3)
        if kind == 0:
            return {"type": "string", "pattern": self._random.choice(PATTERNS), "maxLength": 12}
        if kind == 1:
            return {"type": "string", "format": self._random.choice(FORMATS)}
        low = self._random.randint(0, 4)
        return {"type": "string", "minLength": low, "maxLength": low + self._random.randint(0, 8)}

    def _enum(self) -> Schema:
        values: list[Any] = ["on", "off", 3, -1.5, None, True, "größe", {"a": [1]}, [], "line\nend"]
        return {"enum": self._random.sample(values, self._random.randint(1, 4))}

    def _const(self) -> Schema:
        return {"const": self._random.choice(["fixed", 42, False, {"k": "v"}, [1, "two"]])}

    def _object(self, depth: int) -> Schema:
        names = self._random.sample(WORDS, self._random.randint(1, 4))
        required = [name for name in names if self._random.random() < 0.7]
        schema: Schema = {
            "type": "object",
            "properties": {name: self._any(depth) for name in names},
            "required": required,
            "additionalProperties": False,
        }
        if self._random.random() < 0.1:
            schema["additionalProperties"] = self._integer()
        return schema

    def _array(self, depth: int) -> Schema:
        low = self._random.randint(0, 2)
        return {
            "type": "array",
            "items": self._any(depth),
            "minItems": low,
            "maxItems": low + self._random.randint(0, 2),
        }

    def _tuple(self, depth: int) -> Schema:
        parts = [self._any(depth) for _ in range(self._random.randint(1, 3))]
        return {"type": "array", "prefixItems": parts, "items": False, "minItems": len(parts)}

    def _any_of(self, depth: int) -> Schema:
        return {"anyOf": [self._any(depth) for _ in range(self._random.randint(2, 3))]}

    def _with_part(self, part: Schema) -> Schema:
        """Somewhere inside, where it is required."""
        ways: list[Schema] = [
            part,
            {"type": "object", "properties": {"a": self._integer(), "b": part}, "required": ["b"]},
            {"type": "array", "items": part, "minItems": 1},
        ]
        schema = self._random.choice(ways)
        if "$ref" in part:
            schema = {**schema, "$defs": {"other": {}}}
        return schema

    def _with_references(self) -> Schema:
        tree = {
            "type": "object",
            "properties": {
                "leaf": self._any(0),
                "kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": self._random.randint(1, 2)},
            },
            "required": ["leaf"],
            "additionalProperties": False,
        }
        return {"$ref": "#/$defs/tree", "$defs": {"tree": tree}}
