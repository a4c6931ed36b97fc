"""Finds a pattern in a graph and rewrites it: match backwards from the root, then `check`, then `replace`.

`apply(graph, PATTERN, check, replace)` is the body of most passes. A match is refused if a node outside of it uses a
value inside it (unless the pattern lists that value among its outputs or as shared). Every refusal has a reason, and
`closest` reports the reason of the attempt that got furthest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tensorwright.ir import Dim, Graph, Node, Value
from tensorwright.ir import dims as dim_math
from tensorwright.passes.rewriting.pattern import COMMUTATIVE, AttrVar, Call, Expr, Literal, Pattern, Var, pattern
from tensorwright.passes.rewriting.rewriter import Rewriter, splice

__all__ = ["Match", "Pattern", "apply", "closest", "describe", "find_miss", "match_value", "pattern"]

Reason = str | Callable[[], str]
"""Why an attempt did not match. A function makes the text only when the text is read."""

DIM_ATTRS = frozenset({"dim", "dims", "dim0", "dim1"})


class Refused(Exception):
    """`Match.require` raises this, and the matcher catches it."""


@dataclass
class Miss:
    """Why an attempt failed, and how many ops it had matched before. The text is made only when it is read."""

    depth: int
    root: Node
    reason: Reason
    value: Value | None

    def __str__(self) -> str:
        reason = self.reason() if callable(self.reason) else self.reason
        at = f" at {describe(self.value)}" if self.value is not None else ""
        return f"{self.depth} ops matched up from {describe(self.root.outputs[0])}, then: {reason}{at}"


def describe(value: Value) -> str:
    """Returns "%name = op in its module", for messages."""
    op = value.node.op if value.node is not None else "?"
    scope = f" in {value.node.scope}" if value.node is not None and value.node.scope else ""
    return f"%{value.name} ({op} {value.dtype}{list(value.shape)}{scope})".replace("'", "")


@dataclass(frozen=True)
class State:
    """The bindings of one attempt so far. An extension is a copy, so that another attempt can go back.

    root: the node that the attempt began with. nodes: the nodes that the attempt has matched.
    """

    root: Node
    bound: dict[str, Any]
    nodes: tuple[Node, ...]

    def bind(self, name: str, thing: Any) -> State:
        return State(self.root, {**self.bound, name: thing}, self.nodes)


class Match:
    """A match. Its attributes are the pattern's names: values, or plain data for attributes of ops; None if absent."""

    def __init__(self, pattern: Pattern, state: State):
        self._pattern = pattern
        self._bound = state.bound
        self.nodes = state.nodes
        self.root = state.root
        self.dims: dict[str, Dim] = {}
        self.notes: dict[str, Any] = {}
        """Results of `check` that `replace` needs."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in self._pattern.names:
            raise AttributeError(f"the pattern has no name {name!r}")
        return self._bound.get(name)

    def require(self, condition: object, reason: Reason, value: Value | None = None) -> None:
        """Refuses this match unless `condition`. `reason` may be a function, which is called only for a message."""
        if not condition:
            raise Refused(reason, value)

    def read(self, value: Value, patterns: Sequence[Pattern], reason: Reason) -> Match:
        """Returns the match of the first of `patterns` that ends in `value`. Refuses this match if there is none."""
        for other in patterns:
            found = match_value(value, other)
            if found is not None:
                return found
        raise Refused(reason, value)

    def bind_shape(self, value: Value, letters: str) -> None:
        """Unifies the shape of `value` with letters such as "1 S H*D". Numbers are literal; a letter has one value.

        A leading "..." stands for any dimensions. A product of letters must already be bound.
        """
        tokens = letters.split()
        shape = list(value.shape)
        if tokens and tokens[0] == "...":
            tokens = tokens[1:]
            self.require(len(shape) >= len(tokens), lambda: f"rank is not at least {len(tokens)}", value)
            shape = shape[len(shape) - len(tokens) :]
        self.require(len(shape) == len(tokens), lambda: f"shape is not [{letters}]", value)
        for token, dim in zip(tokens, shape, strict=True):
            if token.isidentifier() and token not in self.dims:
                self.dims[token] = dim
                continue
            factors: list[Dim] = [int(t) if t.isdigit() else self.dims[t] for t in token.split("*")]
            wanted = dim_math.mul(*factors)
            self.require(dim_math.same(wanted, dim), f"[{letters}] needs {token} = {wanted}", value)

    def scalar(self, value: Value) -> float:
        """Returns the number in a scalar constant, as a Python float. Refuses any other value."""
        self.require(value.is_scalar_constant, "not a scalar constant", value)
        return float(value.constant)


Check = Callable[[Match], None]
Replace = Callable[[Match, Rewriter], Any]


@dataclass
class _Matcher:
    pattern: Pattern
    users: dict[Value, list[Node]]
    outputs: frozenset[Value]
    check: Check | None
    through: Node | None = None
    """If not None, only misses that reached this node are remembered."""
    best: Miss | None = None

    def at(self, root: Node) -> Match | None:
        """Returns the first match with `root` as the last line's op that also passes `check`."""
        start = State(root, {}, ())
        for state in self._value(self.pattern.root, root.outputs[self.pattern.root.result], start):
            match = Match(self.pattern, state)
            try:
                self._only_used_inside(match)
                if self.check is not None:
                    self.check(match)
            except Refused as refused:
                self._miss(state, *refused.args)
            else:
                return match
        return None

    def _miss(self, state: State, reason: Reason, value: Value | None, closer: int = 0) -> None:
        """Remembers why this attempt failed, if it got further than the others (and reached `through`)."""
        depth = len(state.nodes) + closer
        wanted = self.through
        if wanted is not None and wanted not in state.nodes and (value is None or value.node is not wanted):
            return
        # Of attempts that got equally far, the first one at the last root is kept: it is nearest to the pattern's text.
        best = self.best
        if best is None or depth > best.depth or (depth == best.depth and best.root is not state.root):
            self.best = Miss(depth, state.root, reason, value)

    def _only_used_inside(self, match: Match) -> None:
        exposed = {match._bound.get(n) for n in (*self.pattern.outputs, *self.pattern.shared)}
        exposed.update(match.root.outputs)
        inside = {id(n) for n in match.nodes}
        for node in match.nodes:
            for value in node.outputs:
                if value in exposed:
                    continue
                outside = [n for n in self.users.get(value, ()) if id(n) not in inside]
                match.require(value not in self.outputs, "it is also an output of the graph", value)
                reason = f"it is also used by {describe(outside[0].outputs[0])}" if outside else ""
                match.require(not outside, reason, value)

    def _value(self, expr: Expr, value: Value | None, state: State) -> Iterator[State]:
        """Yields a state for every way in which `value` can be `expr`."""
        if isinstance(expr, Var):
            yield from self._var(expr, value, state)
        elif value is None:
            self._miss(state, "an operand is absent", None)
        elif isinstance(expr, Literal):
            if value.is_scalar_constant and float(value.constant) == float(expr.value):
                yield state
            else:
                self._miss(state, f"it is not the constant {expr.value}", value)
        elif expr.op == "either":
            for choice in expr.args:
                for inner in self._value(choice, value, state):
                    yield inner.bind(expr.names[0], value) if expr.names else inner
        else:
            yield from self._call(expr, value, state)
            if expr.optional:
                yield from self._value(expr.args[0], value, state)

    def _var(self, expr: Var, value: Value | None, state: State) -> Iterator[State]:
        if value is None and not expr.optional:
            self._miss(state, f"{expr.name} is absent", None)
        elif expr.name not in state.bound:
            yield state.bind(expr.name, value)
        elif state.bound[expr.name] is value:
            yield state
        else:
            self._miss(state, f"it is not {expr.name} again", value)

    def _call(self, expr: Call, value: Value, state: State) -> Iterator[State]:
        name = expr.names[expr.result] if expr.names else None
        if name is not None and name in state.bound:
            if state.bound[name] is value:
                yield state
            else:
                self._miss(state, f"it is not {name} again", value)
            return
        node = value.node
        if node is None or node.op != expr.op:
            self._miss(state, f"it is not {expr.op}", value)
            return
        if expr.names and (len(node.outputs) != len(expr.names) or node.outputs[expr.result] is not value):
            self._miss(state, f"it is not result {expr.result} of {expr.op}", value)
            return
        attrs = self._attrs(expr, node, state)
        if attrs is None:
            return
        bound = {**state.bound, **attrs, **dict(zip(expr.names, node.outputs, strict=False))}
        inner = State(state.root, bound, (*state.nodes, node) if node not in state.nodes else state.nodes)
        for operands in self._orders(expr, node):
            yield from self._operands(expr.args, operands, inner)

    def _attrs(self, expr: Call, node: Node, state: State) -> dict[str, Any] | None:
        learned: dict[str, Any] = {}
        for key, wanted in expr.attrs:
            found = node.attrs.get(key)
            if isinstance(wanted, AttrVar):
                name = wanted.name
                wanted = learned.setdefault(name, state.bound.get(name, found))
            if key not in node.attrs or _plain(found) != _plain(_absolute(key, wanted, node)):
                self._miss(state, f"attribute {key} is not {wanted}", node.outputs[0], closer=1)
                return None
        return learned

    def _orders(self, expr: Call, node: Node) -> Iterator[list[Value | None]]:
        """Yields the operands in every order that the op allows. The node may lack absent ones at the end."""
        operands = list(node.inputs)
        while len(operands) < len(expr.args) and isinstance(expr.args[len(operands)], Var):
            operands.append(None)
        if len(operands) != len(expr.args):
            return
        yield operands
        if self.pattern.commute and expr.op in COMMUTATIVE and operands[0] is not operands[1]:
            yield operands[::-1]

    def _operands(self, exprs: tuple[Expr, ...], values: list[Value | None], state: State) -> Iterator[State]:
        if not exprs:
            yield state
            return
        for inner in self._value(exprs[0], values[0], state):
            yield from self._operands(exprs[1:], values[1:], inner)


def _absolute(key: str, wanted: object, node: Node) -> object:
    """Turns negative dimensions, such as -1, into the numbers that the graph uses."""
    if key not in DIM_ATTRS or not node.inputs or node.inputs[0] is None:
        return wanted
    rank = node.inputs[0].rank
    if isinstance(wanted, list | tuple):
        return [w + rank if w < 0 else w for w in wanted]
    return wanted + rank if isinstance(wanted, int) and wanted < 0 else wanted


def _plain(attr: object) -> object:
    return list(attr) if isinstance(attr, tuple) else attr


def apply(graph: Graph, pattern: Pattern, check: Check | None, replace: Replace) -> int:
    """Rewrites every match until none is left. Returns the number of rewrites. Leaves no dead nodes."""
    total = 0
    while True:
        count = _sweep(graph, pattern, check, replace)
        total += count
        if count == 0:
            return total


def _sweep(graph: Graph, pattern: Pattern, check: Check | None, replace: Replace) -> int:
    """Rewrites matches that do not overlap, in order of discovery."""
    roots = graph.find(pattern.root.op)
    if not roots:  # The table of users takes longer than most sweeps.
        return 0
    matcher = _Matcher(pattern, graph.users(), frozenset(graph.outputs), check)
    inserted: dict[int, list[Node]] = {}
    forward: dict[Value, Value] = {}
    taken: set[int] = set()
    for root in roots:
        match = matcher.at(root)
        if match is None or any(id(n) in taken for n in match.nodes):
            continue
        builder = Rewriter(graph, root)
        result = replace(match, builder)
        results = result if isinstance(result, tuple) else (result,)
        for name, new in zip(pattern.outputs, results, strict=True):
            forward[match._bound[name]] = new
        inserted[id(root)] = builder.nodes
        shared = {id(match._bound[n].node) for n in pattern.shared if match._bound.get(n) is not None}
        taken |= {id(n) for n in match.nodes} - shared
    if inserted:
        splice(graph, inserted, forward)
    return len(inserted)


def find_miss(graph: Graph, pattern: Pattern, check: Check | None = None, through: Node | None = None) -> Miss | None:
    """Returns the attempt that got furthest without matching; with `through`, among those that reached this node."""
    matcher = _Matcher(pattern, graph.users(), frozenset(graph.outputs), check, through)
    for root in graph.nodes:
        if root.op == pattern.root.op:
            matcher.at(root)
    return matcher.best


def closest(graph: Graph, pattern: Pattern, check: Check | None = None) -> str:
    """Returns find_miss as text for error messages."""
    miss = find_miss(graph, pattern, check)
    return f"no {pattern.root.op} that could end the pattern" if miss is None else str(miss)


def match_value(value: Value, pattern: Pattern, check: Check | None = None) -> Match | None:
    """Matches `pattern` ending in `value`. Values inside may have other users; for a check that looks upstream."""
    if value.node is None:
        return None
    return _Matcher(pattern, {}, frozenset(), check).at(value.node)
