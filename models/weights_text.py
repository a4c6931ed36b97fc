"""The parser of weight expressions: text -> tensorwright.models.weights.WeightExpr.

expr  =  "json string"  |  name "(" item { "," item } ")"        item  =  int | "[" ints "]" | expr
"""

from __future__ import annotations

import json
import re
from typing import TypeAlias

from tensorwright.errors import GraphError
from tensorwright.models.weights import Concat, Ref, Reshape, Slice, Stack, Transpose, WeightExpr

_TOKEN = re.compile(r'\s*(?:(?P<string>"(?:[^"\\]|\\.)*")|(?P<int>-?\d+)|(?P<word>[a-z_]+)|(?P<mark>[(),\[\]]))')

_BLANKS = re.compile(r"\s*")
MOST_DEPTH = 50
"""Expressions inside each other."""

Item: TypeAlias = WeightExpr | int | tuple[int, ...]


def parse(text: str) -> WeightExpr:
    """One expression that fills the text. Raises GraphError with the position of the first error."""
    parser = _Parser(text)
    expr = parser.item()
    if not isinstance(expr, WeightExpr):
        raise parser.error("an expression was expected")
    if parser.skip() < len(text):
        raise parser.error("text is left over")
    return expr


class _Parser:
    def __init__(self, text: str):
        self.text, self.position, self.depth = text, 0, 0

    def error(self, message: str) -> GraphError:
        return GraphError(f"weight expression: {message} at column {self.position + 1}: {self.text[:200]!r}")

    def skip(self) -> int:
        """Where the next token begins."""
        blanks = _BLANKS.match(self.text, self.position)
        return self.position if blanks is None else blanks.end()

    def is_next(self, mark: str) -> bool:
        return self.text.startswith(mark, self.skip())

    def take(self) -> tuple[str, str]:
        match = _TOKEN.match(self.text, self.position)
        if match is None or match.lastgroup is None:
            raise self.error("a name, number or bracket was expected")
        self.position = match.end()
        return match.lastgroup, match[match.lastgroup]

    def expect(self, mark: str) -> None:
        if self.take() != ("mark", mark):
            raise self.error(f"{mark!r} was expected before here")

    def item(self) -> Item:
        kind, text = self.take()
        try:
            if kind == "string":
                return Ref(json.loads(text))
            if kind == "int":
                return int(text)
        except ValueError as error:  # an escape that JSON has not, or more digits than Python reads
            raise self.error(str(error)) from error
        if text == "[":
            numbers = self.items("]")
            if not all(isinstance(i, int) for i in numbers):
                raise self.error("only whole numbers may stand in the brackets before here")
            return tuple(i for i in numbers if isinstance(i, int))
        if kind != "word":
            raise self.error("an expression was expected before here")
        self.expect("(")
        return self.build(text, self.items(")"))

    def items(self, close: str) -> list[Item]:
        found: list[Item] = []
        self.depth += 1
        if self.depth > MOST_DEPTH:
            raise self.error(f"at most {MOST_DEPTH} expressions may stand inside each other")
        token = self.take() if self.is_next(close) else ("mark", ",")
        while token == ("mark", ","):
            found.append(self.item())
            token = self.take()
        if token != ("mark", close):
            raise self.error(f"',' or {close!r} was expected before here")
        self.depth -= 1
        return found

    def build(self, name: str, items: list[Item]) -> WeightExpr:
        match name, items:
            case "transpose", [WeightExpr() as part]:
                return Transpose(part)
            case "transpose", [int(a), int(b), WeightExpr() as part] if 0 <= a < b:
                return Transpose(part, a, b)
            case "slice", [int(dim), int(start), int(end), WeightExpr() as part]:
                return Slice(part, dim, start, end)
            case "reshape", [tuple(shape), WeightExpr() as part]:
                return Reshape(part, shape)
            case "concat", [int(dim), *parts] if parts and all(isinstance(p, WeightExpr) for p in parts):
                return Concat(tuple(p for p in parts if isinstance(p, WeightExpr)), dim)
            case "stack", parts if parts and all(isinstance(p, WeightExpr) for p in parts):
                return Stack(tuple(p for p in parts if isinstance(p, WeightExpr)))
        raise self.error(f"{name} is no expression of {len(items)} such parts")
