"""Prints the text form of a graph, which `parse.parse_graph` reads back exactly.

    graph "llama" stage traced {
      fact layers = 2
      %input_ids: int64[1, seq] = input()
      %w: float32[101, 32] = weight() {expr = @"model.embed_tokens.weight"} in model.embed_tokens
      %x: float32[1, seq, 32] = embedding(%w, %input_ids) in model.embed_tokens
      return %x
    }

Each node has one line. Attributes are none, true, false, numbers, "text", (tuples,), [lists], {"dicts": 1},
dense<array>, and @expression for weights. Formats and layouts are written as "text"; the op's record says which
attribute is one. Lines that start with # are comments.
"""

from __future__ import annotations

import base64
import json
import math
import re
from typing import Any

import numpy as np

from tensorwright.engine_format.weight_formats import WeightFormat
from tensorwright.engine_format.weight_layouts import WeightLayout
from tensorwright.errors import GraphError
from tensorwright.ir.graph import Graph, Node, Value
from tensorwright.ir.weights import WeightExpr

NAME = re.compile(r"[A-Za-z0-9_.$-]+")
"""The names that a value may have."""
WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""The names that an op or attribute may have."""
SCOPE = re.compile(r"[A-Za-z0-9_.\-/\[\]]+")
"""A module path that needs no quotes."""

READABLE_ELEMENTS = 64
"""Arrays of at most so many elements are written as numbers, larger ones as base64 of their little-endian bytes."""


def print_graph(graph: Graph) -> str:
    """Returns the whole graph as text, with all constants. Raises GraphError for an attribute without a text form."""
    lines = [f"graph {json.dumps(graph.name)} stage {graph.stage} {{"]
    lines += [f"  fact {name} = {print_literal(value)}" for name, value in graph.facts.literals()]
    lines += [f"  {print_node(node)}" for node in graph.nodes]
    lines += [f"  return {', '.join(_use(v) for v in graph.outputs)}", "}"]
    return "\n".join(lines) + "\n"


def print_node(node: Node, *, short: bool = False) -> str:
    """Returns one node as one line. `short` leaves out the elements of large arrays, for messages."""
    results = ", ".join(f"{_use(v)}: {print_type(v)}" for v in node.outputs)
    _require_word(node.op, "op")
    text = f"{results} = {node.op}({', '.join(_use(v) for v in node.inputs)})"
    if node.attrs:
        pairs = [f"{_require_word(k, 'attribute')} = {print_literal(v, short=short)}" for k, v in node.attrs.items()]
        text += f" {{{', '.join(pairs)}}}"
    if node.scope:
        text += f" in {node.scope if SCOPE.fullmatch(node.scope) else json.dumps(node.scope)}"
    return text


def print_type(value: Value) -> str:
    return f"{value.dtype}[{', '.join(map(str, value.shape))}]"


def print_literal(value: Any, *, short: bool = False) -> str:
    """Returns an attribute or fact as text. Raises GraphError for a type without a text form."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    if type(value) is int or type(value) is float:
        return _number(value)
    if type(value) is str:
        return json.dumps(value)
    if isinstance(value, WeightExpr):
        return f"@{value}"
    if isinstance(value, WeightFormat | WeightLayout):
        return json.dumps(str(value))
    if isinstance(value, np.ndarray):
        return _dense(value, short)
    if type(value) is dict:
        if not all(type(key) is str for key in value):
            raise GraphError(f"the keys of a dict must be text, not {list(value)!r}")
        return "{" + ", ".join(f"{json.dumps(k)}: {print_literal(v)}" for k, v in value.items()) + "}"
    if type(value) is tuple:
        return "(" + ", ".join(map(print_literal, value)) + (",)" if len(value) == 1 else ")")
    if type(value) is list:
        return "[" + ", ".join(map(print_literal, value)) + "]"
    raise GraphError(f"an attribute or fact must be plain data, an array or a weight expression, not {value!r}")


def _number(value: int | float) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return repr(value)


def _dense(array: np.ndarray, short: bool) -> str:
    head = f"dense<{array.dtype.name} [{', '.join(map(str, array.shape))}]"
    if short and array.size > 8:
        return f"{head} ...>"
    readable = _readable(array)
    if readable is not None:
        return f"{head} {readable}>"
    data = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    return f'{head} "{base64.b64encode(data).decode()}">'


def _readable(array: np.ndarray) -> str | None:
    """Returns the elements as numbers, or None if they are many or would not be read back bit for bit."""
    if array.size > READABLE_ELEMENTS or array.dtype.kind not in "biuf":
        return None
    if array.dtype.kind != "f":
        return "(" + ", ".join(_number(int(x)) for x in array.flat) + ")"
    texts = [str(x) for x in array.flat]
    again = np.array([float(t) for t in texts], dtype=array.dtype)
    return "(" + ", ".join(texts) + ")" if again.tobytes() == np.ascontiguousarray(array).tobytes() else None


def _use(value: Value | None) -> str:
    if value is None:
        return "none"
    if not NAME.fullmatch(value.name):
        raise GraphError(f"a value's name must be letters, digits and any of . _ - $, not {value.name!r}")
    return f"%{value.name}"


def _require_word(word: str, what: str) -> str:
    if not isinstance(word, str) or not WORD.fullmatch(word):
        raise GraphError(f"the name of a {what} must be an identifier, not {word!r}")
    return word


def underline(graph: Graph, node: Node, *, context: int = 2) -> str:
    """Returns the lines of a node and its neighbours, with the node's op underlined, for error messages."""
    at = next(i for i, n in enumerate(graph.nodes) if n is node)
    lines: list[str] = []
    for i in range(max(0, at - context), min(len(graph.nodes), at + context + 1)):
        text = print_node(graph.nodes[i], short=True)
        lines.append(f"  {text}")
        if i == at:
            start = text.index(" = ") + 3
            lines.append("  " + " " * start + "^" * len(node.op))
    return "\n".join(lines)
