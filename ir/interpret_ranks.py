"""Interprets the graphs of all ranks of a parallel engine in one process, each in a thread of its own.

It is the oracle of what ranks compute: an operation that they compute together is computed once, by its definition over
all of them (`across` of its record), when the last of them has arrived.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from tensorwright.errors import GraphError
from tensorwright.ir.graph import Graph, Node
from tensorwright.ir.interpret import Weights
from tensorwright.ir.ops import find_spec
from tensorwright.ir.ragged import RaggedAdapter

PATIENCE = 300.0
"""The seconds that a rank waits for the others before the graphs are taken to disagree."""


@dataclass
class _Meeting:
    """What the ranks of one stage bring to one operation."""

    operands: dict[int, list[np.ndarray]] = field(default_factory=dict)
    nodes: dict[int, Node] = field(default_factory=dict)
    results: list[np.ndarray] | None = None


class Ranks:
    """The ranks of one engine: rank r is number r % tensor of stage r // tensor."""

    def __init__(self, graphs: Sequence[Graph]):
        facts = graphs[0].facts
        self.graphs, self.tensor = graphs, facts.tensor_parallel
        if len(graphs) != facts.tensor_parallel * facts.pipeline_parallel:
            raise GraphError(f"the graphs are of {len(graphs)} ranks, not of those that their facts say")
        self.changed = threading.Condition()
        self.meetings: dict[tuple[int, int], _Meeting] = {}
        self.moved: dict[tuple[int, int, int], np.ndarray] = {}
        self.failed: BaseException | None = None

    def meet(self, rank: int, counter: list[int], node: Node, operands: list[np.ndarray]) -> np.ndarray:
        """Returns the result of a node for one rank. counter: how many operations its stage has computed together."""
        if node.op == "send":
            (x,) = operands
            with self.changed:
                self.moved[rank + self.tensor, node.attrs["message"], counter[1]] = x
                self.changed.notify_all()
            return x
        if node.op == "receive":
            return self._wait(lambda: self.moved.pop((rank, node.attrs["message"], counter[1]), None))
        stage, number = divmod(rank, self.tensor)
        key = (stage, counter[0])
        counter[0] += 1
        with self.changed:
            meeting = self.meetings.setdefault(key, _Meeting())
            meeting.operands[number], meeting.nodes[number] = operands, node
            if len(meeting.operands) == self.tensor:
                meeting.results = self._together(meeting)
                self.changed.notify_all()
        results: list[np.ndarray] = self._wait(lambda: meeting.results)
        return results[number]

    def _together(self, meeting: _Meeting) -> list[np.ndarray]:
        nodes = [meeting.nodes[number] for number in range(self.tensor)]
        if len({node.op for node in nodes}) > 1:
            raise GraphError(f"the ranks of a stage do not compute the same: {', '.join(node.op for node in nodes)}")
        spec = find_spec(nodes[0].op, self.graphs[0].stage)
        if spec is None or spec.across is None:
            raise GraphError(f"{nodes[0].op} has no definition over several ranks")
        return spec.across([meeting.operands[i] for i in range(self.tensor)], [node.attrs for node in nodes])

    def _wait(self, arrived: Any) -> Any:
        found: list[Any] = []

        def ready() -> bool:
            found[:] = [arrived()]
            return self.failed is not None or found[0] is not None

        with self.changed:
            in_time = self.changed.wait_for(ready, PATIENCE)
        if self.failed is not None:
            raise GraphError(f"another rank failed: {self.failed}") from self.failed
        if not in_time:
            raise GraphError("a rank waits for another that does not arrive")
        return found[0]

    def fail(self, error: BaseException) -> None:
        with self.changed:
            self.failed = self.failed or error
            self.changed.notify_all()


def interpret_ranks(
    graphs: Sequence[Graph],
    sequences: Sequence[Sequence[int]],
    weights: Weights,
    *,
    steps: Sequence[Sequence[int]] | None = None,
    block_size: int = 16,
) -> list[list[torch.Tensor]]:
    """Returns what `interpret_ragged` does, for each rank of the last stage.

    graphs: of all ranks in order, at stage "cached" or "lowered". Raises what a rank raised.
    """
    ranks = Ranks(graphs)
    plan = [[len(s) for s in sequences]] if steps is None else steps
    results: dict[int, list[torch.Tensor]] = {}

    def work(rank: int) -> None:
        counter = [0, 0]
        try:
            adapter = RaggedAdapter(
                graphs[rank],
                sequences,
                block_size=block_size,
                meet=lambda node, operands: ranks.meet(rank, counter, node, operands),
            )
            pieces = []
            for counts in plan:
                pieces.append(adapter.step(counts, weights))
                counter[1] += 1
            results[rank] = [torch.cat([piece[i] for piece in pieces]) for i in range(len(sequences))]
        except BaseException as error:  # The thread ends here, so the error goes to the caller and to all other ranks.
            ranks.fail(error)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(len(graphs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if ranks.failed is not None:
        raise ranks.failed
    return [results[rank] for rank in range(len(graphs) - ranks.tensor, len(graphs))]
