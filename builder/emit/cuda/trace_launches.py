"""Finds every list of launches that a function of launch.py can make, whatever the sizes of a step are.

The function runs with sizes that are symbols. Where it asks whether a comparison holds, it is run once for each answer.
What came out is a tree of decisions, whose equal parts are one: `trace` returns its nodes, the root first, each before
those that it leads to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tensorwright.builder.emit.cuda.sizes import Expressions
from tensorwright.errors import KernelError

MAX_PATHS = 4096
"""The most paths of one operation. A function with more of them decides too much by sizes."""


@dataclass(frozen=True)
class Leaf:
    """The launches of one path, as the caller's function returned them."""

    launches: tuple[Any, ...]


@dataclass(frozen=True)
class Refused:
    """A path on which the function refuses the sizes."""

    why: str


@dataclass(frozen=True)
class Branch:
    """A comparison, by the number of its expression, and the nodes that follow if it is true or false."""

    condition: int
    if_true: int
    if_false: int


Node = Leaf | Refused | Branch


def trace(expressions: Expressions, run: Callable[[], tuple[Any, ...]]) -> tuple[Node, ...]:
    """Returns the nodes of the tree. `run` makes the launches, which must be hashable.

    Raises KernelError where the function refuses the operation whatever the sizes are, and for more than MAX_PATHS.
    """
    tracing = _Tracing(expressions, run)
    root = tracing.explore(())
    if all(isinstance(node, Refused) for node in tracing.nodes if not isinstance(node, Branch)):
        raise KernelError(next(node.why for node in tracing.nodes if isinstance(node, Refused)))
    return _ordered(tracing.nodes, root)


class _Tracing:
    """Runs one function along all paths. `nodes` holds each different node once."""

    def __init__(self, expressions: Expressions, run: Callable[[], tuple[Any, ...]]):
        self.expressions, self.run = expressions, run
        self.nodes: list[Node] = []
        self._numbers: dict[Node, int] = {}
        self._paths = 0

    def explore(self, forced: tuple[bool, ...]) -> int:
        """Returns the node of all paths that begin with these answers."""
        self._paths += 1
        if self._paths > MAX_PATHS:
            raise KernelError(f"its launches differ along more than {MAX_PATHS} paths of comparisons of sizes")
        with self.expressions.following(forced) as path:
            try:
                outcome: Node = Leaf(self.run())
            except KernelError as error:
                outcome = Refused(str(error))
        answers = tuple(answer for _, answer in path.taken)
        node = self._keep(outcome)
        for at in reversed(range(len(forced), len(answers))):
            other = self.explore((*answers[:at], False))
            node = node if node == other else self._keep(Branch(path.taken[at][0], node, other))
        return node

    def _keep(self, node: Node) -> int:
        if node not in self._numbers:
            self._numbers[node] = len(self.nodes)
            self.nodes.append(node)
        return self._numbers[node]


def _ordered(nodes: list[Node], root: int) -> tuple[Node, ...]:
    """Returns the nodes that the root leads to, each before those that it leads to. A node is made after those that it
    leads to, so the opposite order of making is such an order."""
    reached, waiting = {root}, [root]
    while waiting:
        node = nodes[waiting.pop()]
        if isinstance(node, Branch):
            waiting += [n for n in (node.if_true, node.if_false) if n not in reached]
            reached |= {node.if_true, node.if_false}
    order = sorted(reached, reverse=True)
    place = {number: i for i, number in enumerate(order)}
    found = (nodes[number] for number in order)
    return tuple(
        Branch(n.condition, place[n.if_true], place[n.if_false]) if isinstance(n, Branch) else n for n in found
    )
