"""Parses the pattern language, which says in the graph's own op vocabulary what a rewrite looks for.

    pattern('''
        sq  = mul(x, x)                      # a line names the result of an op; the last line is the root
        inv = rsqrt(add(mean(sq, dims=[-1], keepdim=True), eps))
        out = mul(weight, mul(x, inv))
    ''', commute=True)

* A name that no line defines is a free variable: it stands for one value, the same one everywhere it appears.
* `op?(a, ...)` is an optional op: it matches op(a, ...) or, where the op is absent, a alone.
* `either(a, b)` matches a or, failing that, b.
* `name?` as an operand may be absent.
* A number stands for a scalar constant of that value.
* `attr=literal` must be equal (negative dims count from the end of the first operand); `attr=name` binds the attribute.
* `a, b = op(...)` names several results.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass

COMMUTATIVE = frozenset({"add", "mul", "eq", "ne", "maximum", "minimum", "logical_and", "logical_or"})

_OPTIONAL = "optional_"


@dataclass(frozen=True)
class Var:
    """A free variable. `optional` means that the operand may be absent."""

    name: str
    optional: bool = False


@dataclass(frozen=True)
class Literal:
    """A scalar constant with this value."""

    value: float | int | bool


@dataclass(frozen=True)
class AttrVar:
    """Binds the attribute's value to `name`."""

    name: str


@dataclass(frozen=True)
class Call:
    """One op. `names` are its results' names, empty for a nested op; `result` is the index of the one meant here."""

    op: str
    args: tuple[Var | Literal | Call, ...]
    attrs: tuple[tuple[str, object], ...] = ()
    optional: bool = False
    names: tuple[str, ...] = ()
    result: int = 0


Expr = Var | Literal | Call


@dataclass(frozen=True)
class Pattern:
    """A parsed pattern. A replacement provides `outputs`. Only `outputs` and `shared` results may have other users."""

    root: Call
    outputs: tuple[str, ...]
    shared: frozenset[str]
    names: frozenset[str]
    commute: bool


def pattern(text: str, *, commute: bool = False, outputs: Iterable[str] = (), shared: Iterable[str] = ()) -> Pattern:
    """Parses `text`.

    `outputs`: the results that the replacement provides (default: the root's); they may have other users.
    `shared`: inner results that may have other users too; the rewrite does not remove them.
    Raises ValueError for text outside the language: patterns are written by us, not by users.
    """
    source = re.sub(r"([A-Za-z_]\w*)\?", _OPTIONAL + r"\1", textwrap.dedent(text))
    parser = _Parser()
    root: Call | None = None
    for statement in ast.parse(source).body:
        root = parser.line(statement)
    if root is None or root.op == "either":
        raise ValueError("a pattern needs a last line that is one op, not a choice")
    results = tuple(outputs) or root.names
    unknown = (set(results) | set(shared)) - set(parser.lines)
    if unknown:
        raise ValueError(f"no line defines {sorted(unknown)}")
    return Pattern(root, results, frozenset(shared), frozenset(parser.names | set(parser.lines)), commute)


class _Parser:
    """Turns lines into expressions, and replaces a line's name by the expression that it names."""

    def __init__(self) -> None:
        self.lines: dict[str, Call] = {}
        self.names: set[str] = set()

    def line(self, statement: ast.stmt) -> Call:
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            raise ValueError(f"a pattern line must be `name = op(...)`, not {ast.unparse(statement)}")
        target = statement.targets[0]
        targets = target.elts if isinstance(target, ast.Tuple) else [target]
        names = tuple(t.id for t in targets if isinstance(t, ast.Name))
        expr = self.expression(statement.value)
        if not isinstance(expr, Call) or expr.names or len(names) != len(targets):
            raise ValueError(f"a pattern line must name a new op, not {ast.unparse(statement)}")
        if repeated := set(names) & set(self.lines):
            raise ValueError(f"{sorted(repeated)} named twice in a pattern")
        for i, name in enumerate(names):
            self.lines[name] = Call(expr.op, expr.args, expr.attrs, expr.optional, names, i)
        return self.lines[names[0]]

    def expression(self, node: ast.expr) -> Expr:
        if isinstance(node, ast.Name):
            return self.name(node.id)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            op = node.func.id
            attrs = tuple((k.arg or "", self.attribute(k.value)) for k in node.keywords)
            args = tuple(self.expression(a) for a in node.args)
            return Call(op.removeprefix(_OPTIONAL), args, attrs, op.startswith(_OPTIONAL))
        value = ast.literal_eval(node)
        if not isinstance(value, int | float):
            raise ValueError(f"an operand must be a name, an op or a number, not {ast.unparse(node)}")
        return Literal(value)

    def name(self, text: str) -> Expr:
        if text in self.lines:
            return self.lines[text]
        name = text.removeprefix(_OPTIONAL)
        self.names.add(name)
        return Var(name, text.startswith(_OPTIONAL))

    def attribute(self, node: ast.expr) -> object:
        if isinstance(node, ast.Name):
            self.names.add(node.id)
            return AttrVar(node.id)
        return ast.literal_eval(node)
