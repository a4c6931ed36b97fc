"""Compares, for --verify, what a graph computes on real inputs before and after a pass; not a pass itself.

A rewrite may change the order of a sum, nothing else. Passes that are lossy in bfloat16 (widening, lowering) are
measured and not bounded; the accuracy record of the finished engine says what they cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tensorwright.errors import PassError
from tensorwright.ir import Graph
from tensorwright.ir.ops import summing_ops
from tensorwright.ir.text import print_graph
from tensorwright.ir.verify import FEATURES, GIVEN_FEATURES

if TYPE_CHECKING:
    import torch

Weights = Callable[[Any], Any]
"""Returns the tensor of a weight expression."""

LENGTH = 24
SEED = 20240607
EPSILON = 2.0**-23
"""The spacing of float32 at 1."""


class Comparison:
    """Remembers the last outputs of the graph, and compares the next ones with them."""

    def __init__(self, weights: Weights):
        self.weights = weights
        self.before: torch.Tensor | None = None
        self.text = ""

    def check(self, graph: Graph, step: str, *, lossy: bool) -> float:
        """Returns the largest change of a logit over the pass `step`; 0 for the first graph.

        Raises PassError if reordered sums do not explain the change, unless the pass is lossy by design.
        """
        text = print_graph(graph)
        if text == self.text:
            return 0.0
        after = self.outputs(graph)
        before, self.before, self.text = self.before, after, text
        if before is None:
            return 0.0
        difference = float((after - before).abs().max())
        bound = tolerance(graph, float(before.abs().max()))
        if not lossy and not difference <= bound:
            raise PassError(
                f"pass {step} changed the numbers: the largest difference of a logit must be at most {bound:.3g} "
                f"(reordered float32 sums), and is {difference:.3g}; dump the graphs to see what it did"
            )
        return difference

    def outputs(self, graph: Graph) -> torch.Tensor:
        """Returns logits [LENGTH, vocab] of one sequence; from stage "cached" on in two chunks, beside another one. The
        columns of a further output follow them."""
        import torch

        ids = tokens(graph)
        features = random_features(graph, ids.shape[1])
        if graph.stage in ("cached", "lowered"):
            from tensorwright.ir.ragged import interpret_ragged

            sequence = ids[0].tolist()
            chunk = len(sequence) // 2 + 1
            steps = [[chunk, 0], [len(sequence) - chunk, chunk]]
            both = None if features is None else [features, features[:chunk]]
            sequences = [sequence, sequence[:chunk]]
            return interpret_ragged(graph, sequences, self.weights, steps=steps, features=both)[0].double()
        from tensorwright.ir.interpret import interpret

        known = {"input_ids": ids, "position_ids": torch.arange(ids.shape[1])[None]}
        if features is not None:
            known[GIVEN_FEATURES] = features[None]
        results = interpret(graph, {v.name: known[v.name] for v in graph.inputs}, self.weights)
        return torch.cat([result[0] for result in results], -1).double()


def tokens(graph: Graph) -> torch.Tensor:
    """Returns [1, LENGTH] int64, seeded, so that a failure can be repeated."""
    import torch

    length = min(LENGTH, graph.facts.max_seq_len if "max_seq_len" in graph.facts else LENGTH)
    generator = torch.Generator().manual_seed(SEED)
    return torch.randint(0, graph.facts.vocab_size, (1, length), generator=generator)


def random_features(graph: Graph, length: int) -> torch.Tensor | None:
    """Returns features [length, width] for a graph of heads, seeded; None for another graph."""
    import torch

    wanted = next((value for value in graph.inputs if value.name in (FEATURES, GIVEN_FEATURES)), None)
    if wanted is None:
        return None
    generator = torch.Generator().manual_seed(SEED)
    return torch.randn(length, int(wanted.shape[-1]), generator=generator)


def tolerance(graph: Graph, largest: float) -> float:
    """Returns the bound: reordering moves a sum of k terms by about eps * sqrt(k) of it; `depth` sums are chained."""
    widths = [1]
    depth = 0
    summing = summing_ops()
    for node in graph.nodes:
        if node.op in summing:
            depth += 1
            widths += [d for v in node.inputs if v is not None for d in v.shape if isinstance(d, int)]
    return 4 * EPSILON * math.sqrt(max(widths)) * math.sqrt(max(depth, 1)) * max(largest, 1.0)
