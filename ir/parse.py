"""Parses the text form of a graph, which text.py describes."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from tensorwright.engine_format.weight_formats import parse_format
from tensorwright.engine_format.weight_layouts import parse_layout
from tensorwright.errors import GraphError, InvalidOptionError
from tensorwright.ir import dims
from tensorwright.ir.graph import CACHES, DTYPES, Dim, Graph, Shape, Value
from tensorwright.ir.ops import STAGES, find_spec
from tensorwright.ir.records import Op
from tensorwright.ir.text import NAME, SCOPE, WORD
from tensorwright.ir.weights import parse_expr

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_NUMBER = re.compile(r"-?(?:inf|nan)\b|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_DIM = re.compile(r"[A-Za-z0-9_ +*()/-]+")
_MAX_DEPTH = 50
"""The most literals inside each other."""
_SHOWN = 160
"""The most characters of a line that a message shows before and behind the place of an error."""
TYPES_OF_TEXT: dict[str, Callable[[str], Any]] = {"format": parse_format, "layout": parse_layout}
"""The kinds of attributes that are written as text, and what reads them."""
_KEYWORDS = {"none": None, "true": True, "false": False}


def parse_graph(text: str) -> Graph:
    """Returns the graph that `text` describes. Raises GraphError with line, column and the offending line."""
    rows = [(i, row) for i, row in enumerate(text.splitlines(), 1) if row.strip() and not row.lstrip().startswith("#")]
    if not rows:
        raise GraphError("line 1: a graph was expected, the text is empty")
    parser = _GraphParser(_Line(*rows[0]))
    for number, row in rows[1:]:
        parser.line(_Line(number, row))
    if not parser.closed:
        raise GraphError(f"line {rows[-1][0]}: the graph is not closed by '}}'")
    return parser.graph


class _Line:
    """One line and a position in it. Every error names both."""

    def __init__(self, number: int, text: str):
        self.number, self.text, self.at = number, text, 0
        self.depth = 0  # the number of literals around the position

    def fail(self, message: str) -> NoReturn:
        begin = max(0, self.at - _SHOWN)
        shown = self.text[begin : self.at + _SHOWN]
        where = f"line {self.number}, column {self.at + 1}: {message}"
        raise GraphError(f"{where}\n  {shown}\n  {' ' * (self.at - begin)}^")

    def skip(self) -> None:
        while self.at < len(self.text) and self.text[self.at] == " ":
            self.at += 1

    def peek(self, mark: str) -> bool:
        self.skip()
        return self.text.startswith(mark, self.at)

    def accept(self, mark: str) -> bool:
        if not self.peek(mark):
            return False
        self.at += len(mark)
        return True

    def expect(self, mark: str) -> None:
        if not self.accept(mark):
            self.fail(f"{mark!r} was expected")

    def take(self, pattern: re.Pattern[str], what: str) -> str:
        self.skip()
        match = pattern.match(self.text, self.at)
        if match is None:
            self.fail(f"{what} was expected")
        self.at = match.end()
        return match[0]

    def end(self) -> None:
        self.skip()
        if self.at < len(self.text):
            self.fail("the line should end here")


class _GraphParser:
    def __init__(self, head: _Line):
        head.expect("graph")
        name = _string(head)
        head.expect("stage")
        stage = head.take(WORD, "a stage")
        if stage not in STAGES:
            head.fail(f"a stage must be one of {', '.join(STAGES)}, not {stage!r}")
        head.expect("{")
        head.end()
        self.graph = Graph(name, stage)
        self.values: dict[str, Value] = {}
        self.returned = self.closed = False

    def line(self, line: _Line) -> None:
        if self.closed:
            line.fail("the graph is closed already")
        if line.accept("}"):
            if not self.returned:
                line.fail("a graph must end with 'return'")
            self.closed = True
        elif self.returned:
            line.fail("nothing may follow 'return'")
        elif line.peek("%"):
            self.node(line)
        elif line.accept("fact "):
            key = line.take(WORD, "the fact's name")
            line.expect("=")
            if key in self.graph.facts:
                line.fail(f"fact {key} is given twice")
            literal = parse_literal(line)
            try:
                self.graph.facts.read(key, literal)
            except GraphError as error:
                line.fail(str(error))
        elif line.accept("return"):
            self.graph.outputs = self._outputs(line)
            self.returned = True
        else:
            line.fail("a node (%...), 'fact', 'return' or '}' was expected")
        line.end()

    def _outputs(self, line: _Line) -> list[Value]:
        outputs: list[Value] = []
        while not outputs or line.accept(","):
            value = self._use(line)
            if value is None:
                line.fail("an output must be a value")
            outputs.append(value)
        return outputs

    def node(self, line: _Line) -> None:
        """Parses a node: %a: type, %b: type = op(%x, none) {attr = literal} in scope."""
        names: list[str] = []
        types: list[tuple[str, Shape]] = []
        while not names or line.accept(","):
            line.expect("%")
            name = line.take(NAME, "a value's name")
            if name in self.values or name in names:
                line.fail(f"%{name} is defined twice")
            line.expect(":")
            names.append(name)
            types.append(_type(line))
        line.expect("=")
        op = line.take(WORD, "an op")
        line.expect("(")
        inputs: list[Value | None] = []
        while not line.accept(")"):
            if inputs:
                line.expect(",")
            inputs.append(self._use(line))
        attrs = _attributes(line)
        _read_formats(line, find_spec(op, self.graph.stage), attrs)
        scope = _scope(line)
        node = self.graph.add(op, inputs, attrs, types, scope=scope, names=names)
        self.values |= {v.name: v for v in node.outputs}

    def _use(self, line: _Line) -> Value | None:
        if line.accept("none"):
            return None
        line.expect("%")
        name = line.take(NAME, "a value's name")
        if name not in self.values:
            line.fail(f"%{name} is not defined above")
        return self.values[name]


def _type(line: _Line) -> tuple[str, Shape]:
    dtype = line.take(WORD, "an element type")
    if dtype not in DTYPES:
        line.fail(f"an element type must be one of {', '.join(DTYPES)}, not {dtype!r}")
    line.expect("[")
    shape: list[Dim] = []
    while not line.accept("]"):
        if shape:
            line.expect(",")
        text = line.take(_DIM, "a dimension").strip()
        try:
            shape.append(dims.canonical(text))
        except GraphError as error:
            line.fail(str(error))
    return dtype, tuple(shape)


def _attributes(line: _Line) -> dict[str, Any]:
    attrs: dict[str, Any] = {}
    if not line.accept("{"):
        return attrs
    while not attrs or line.accept(","):
        key = line.take(WORD, "an attribute's name")
        if key in attrs:
            line.fail(f"attribute {key} is given twice")
        line.expect("=")
        attrs[key] = parse_literal(line)
    line.expect("}")
    return attrs


def _read_formats(line: _Line, record: Op | None, attrs: dict[str, Any]) -> None:
    """Makes typed values of the attributes that are formats or layouts by the op's record. The verifier refuses an op
    without a record."""
    kinds = {} if record is None else {**record.attrs, **record.optional_attrs}
    for name, value in attrs.items():
        if kinds.get(name) in TYPES_OF_TEXT and isinstance(value, str):
            try:
                attrs[name] = TYPES_OF_TEXT[kinds[name]](value)
            except InvalidOptionError as error:
                line.fail(f"attribute {name}: {error}")


def _scope(line: _Line) -> str:
    if not line.accept("in "):
        return ""
    return _string(line) if line.peek('"') else line.take(SCOPE, "a module path")


def _string(line: _Line) -> str:
    text = line.take(_STRING, "text in double quotes")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line.fail(f"bad text: {error.msg}")


# -- literals ---------------------------------------------------------------------------------------------------------


def parse_literal(line: _Line) -> Any:
    """Parses a literal as text.print_literal writes it."""
    line.depth += 1
    if line.depth > _MAX_DEPTH:
        line.fail(f"at most {_MAX_DEPTH} literals may stand inside each other")
    value = _literal(line)
    line.depth -= 1
    return value


def _literal(line: _Line) -> Any:
    line.skip()
    if line.peek('"'):
        return _string(line)
    if line.accept("dense<"):
        return _dense(line)
    if line.accept("@"):
        return _expression(line)
    for mark, close, make in (("(", ")", tuple), ("[", "]", list)):
        if line.accept(mark):
            return make(_items(line, close))
    if line.accept("{"):
        return _dict(line)
    if _NUMBER.match(line.text, line.at):
        return _number(line)
    word = line.take(WORD, "a literal")
    if word not in _KEYWORDS:
        line.fail(f"a literal was expected, not {word!r}")
    return _KEYWORDS[word]


def _number(line: _Line) -> int | float:
    text = line.take(_NUMBER, "a number")
    try:
        return int(text) if text.lstrip("-").isdigit() else float(text)
    except ValueError as error:  # Python does not read numbers of some thousand digits or more.
        line.fail(str(error))


def _items(line: _Line, close: str) -> list[Any]:
    """Parses comma-separated literals up to `close`. A trailing comma is allowed, for tuples of one have it."""
    items: list[Any] = []
    while not line.accept(close):
        items.append(parse_literal(line))
        if not line.accept(",") and not line.peek(close):
            line.fail(f"',' or {close!r} was expected")
    return items


def _dict(line: _Line) -> dict[str, Any]:
    items: dict[str, Any] = {}
    while not line.accept("}"):
        key = _string(line)
        line.expect(":")
        items[key] = parse_literal(line)
        if not line.accept(",") and not line.peek("}"):
            line.fail("',' or '}' was expected")
    return items


def _dense(line: _Line) -> np.ndarray:
    """Parses an array: dense<float32 [2, 2] (1.0, ...)> or dense<float32 [2, 2] "base64">."""
    name = line.take(WORD, "an element type")
    if name not in DTYPES or name in (*CACHES, "bfloat16"):
        line.fail(f"an array's element type must be one numpy has, not {name!r}")
    dtype = np.dtype(name)
    line.expect("[")
    shape = tuple(_items(line, "]"))
    try:
        if line.peek('"'):
            data = base64.b64decode(_string(line), validate=True)
            array = np.frombuffer(data, dtype.newbyteorder("<")).astype(dtype).reshape(shape)
        else:
            line.expect("(")
            array = np.array(_items(line, ")"), dtype=dtype).reshape(shape)
    except (ValueError, TypeError, OverflowError, binascii.Error) as error:
        line.fail(f"the array does not fit its type: {error}")
    line.expect(">")
    return array


def _expression(line: _Line) -> Any:
    """Finds the comma or bracket that ends a weight expression at its outermost level. weights.parse_expr parses the
    expression."""
    start, depth = line.at, 0
    while line.at < len(line.text):
        char = line.text[line.at]
        if char == '"':
            line.take(_STRING, "text in double quotes")
            continue
        if depth == 0 and char in ",)]}":
            break
        depth += (char in "([") - (char in ")]")
        line.at += 1
    try:
        return parse_expr(line.text[start : line.at])
    except GraphError as error:
        line.at = start
        line.fail(str(error))
