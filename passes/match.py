"""What the matcher hands to `check` and `replace`, and how it says why something did not match."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tensorwright.ir import Dim, Node, Value
from tensorwright.ir import dims as dim_math
from tensorwright.passes.pattern import Pattern

Reason = str | Callable[[], str]


class Refused(Exception):
    """What `require` throws; caught by the matcher."""


@dataclass
class Miss:
    """Why an attempt failed, and how many ops it had matched by then. The text is made only when read."""

    depth: int
    root: Node
    reason: Reason
    value: Value | None

    def __str__(self) -> str:
        reason = self.reason() if callable(self.reason) else self.reason
        at = f" at {describe(self.value)}" if self.value is not None else ""
        return f"{self.depth} ops matched up from {describe(self.root.outputs[0])}, then: {reason}{at}"


def describe(value: Value) -> str:
    """%name = op in its module, for messages."""
    op = value.node.op if value.node is not None else "?"
    scope = f" in {value.node.scope}" if value.node is not None and value.node.scope else ""
    return f"%{value.name} ({op} {value.dtype}{list(value.shape)}{scope})".replace("'", "")


@dataclass(frozen=True)
class State:
    """Bindings of one attempt; extended by copying, so that another attempt can go back."""

    bound: dict[str, Any]
    nodes: tuple[Node, ...]

    def bind(self, name: str, thing: Any) -> State:
        return State({**self.bound, name: thing}, self.nodes)


class Match:
    """Names of the pattern as attributes: values for names and variables, plain data for attributes, None if absent."""

    def __init__(self, pattern: Pattern, state: State, root: Node):
        self._pattern = pattern
        self._bound = state.bound
        self.nodes = state.nodes
        self.root = root
        self.dims: dict[str, Dim] = {}
        self.notes: dict[str, Any] = {}
        """What `check` learned for `replace`."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in self._pattern.names:
            raise AttributeError(f"the pattern has no name {name!r}")
        return self._bound.get(name)

    def require(self, condition: object, reason: Reason, value: Value | None = None) -> None:
        """Refuse this match unless `condition`; `reason` may be a function, called only when somebody reads it."""
        if not condition:
            raise Refused(reason, value)

    def bind_shape(self, value: Value, letters: str) -> None:
        """Unify the shape of `value` with letters such as "1 S H*D": numbers are literal, letters equal everywhere.

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
        """The number that a scalar constant is, as a Python float; refuses anything else."""
        self.require(value.is_scalar_constant, "not a scalar constant", value)
        return float(value.constant)
