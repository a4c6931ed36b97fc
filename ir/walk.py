"""Runs graphs node by node, so that two runs can read a checkpoint together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorwright.ir.graph import STORED, Graph, Value
from tensorwright.ir.interpret import Weights, run


class Walk:
    """One run of `graph` in the interpreter, which the caller advances. It has the arguments of `interpret`.

    told: gets the numbers of nodes that are computed, and of all, after each node.
    """

    def __init__(
        self,
        graph: Graph,
        inputs: dict[str, Any],
        weights: Weights,
        told: Callable[[int, int], None] = lambda done, total: None,
    ):
        self._graph = graph
        self._values = run(graph, inputs, weights)
        self._ahead = [node for node in reversed(graph.nodes) if node.op not in STORED]
        self._total = len(self._ahead)
        self._told = told
        self._results: dict[Value, Any] = {}

    @property
    def done(self) -> bool:
        return not self._ahead

    def next_reads(self) -> set[str]:
        """Returns the names of the checkpoint's tensors that the next node reads."""
        made_by = [v.node for v in self._ahead[-1].inputs if v is not None and v.node is not None]
        return {name for node in made_by if node.op == "weight" for name in node.attrs["expr"].refs()}

    def advance(self) -> None:
        """Computes the next node."""
        for _ in self._ahead.pop().outputs:
            value, data = next(self._values)
            if value in self._graph.outputs:
                self._results[value] = data
        self._told(self._total - len(self._ahead), self._total)

    def finish(self) -> list[Any]:
        """Computes all remaining nodes, and returns the graph's outputs."""
        while not self.done:
            self.advance()
        return [self._results[value] for value in self._graph.outputs]


def in_step(first: Walk, second: Walk) -> None:
    """Runs both walks to their ends. `second` reads tensors soon after `first`, while the page cache still has them."""
    read: set[str] = set()
    while not second.done:
        while not first.done and not second.next_reads() <= read:
            read |= first.next_reads()
            first.advance()
        second.advance()
    first.finish()
