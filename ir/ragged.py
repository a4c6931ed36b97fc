"""Runs ragged batches through graphs at stage "cached" or "lowered": makes metadata inputs, and keeps the cache.

This is the runtime's scheduler in its simplest form. It serves to compare a cached graph with the traced graph that
runs on each sequence alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from tensorwright.errors import GraphError
from tensorwright.ir.graph import Graph
from tensorwright.ir.interpret import Meet, Weights, run
from tensorwright.ir.ops import make_cache
from tensorwright.ir.state_cache import StateCache
from tensorwright.ir.verify import FEATURES


class RaggedAdapter:
    """Sequences of token ids, their block tables, and the number of computed tokens of each.

    Sequences get blocks in turn and backwards, so that no table is in order. Entries past the end of a sequence name no
    block, and unwritten slots of the caches are NaN. State slots are given backwards. A whole sequence is a prompt.
    """

    def __init__(
        self,
        graph: Graph,
        sequences: Sequence[Sequence[int]],
        *,
        block_size: int = 16,
        features: Sequence[torch.Tensor] | None = None,
        meet: Meet | None = None,
    ):
        """features: for a graph of heads, float32 [len, width] for each sequence. meet: as that of `run`."""
        self.meet = meet
        self.graph = graph
        self.features = features
        self.sequences = [list(s) for s in sequences]
        self.block_size = block_size
        self.done = [0] * len(self.sequences)
        needed = [-(-len(s) // block_size) for s in self.sequences]
        self.blocks = sum(needed)
        self.tables = np.full((len(needed), max(needed, default=0)), self.blocks, np.int32)
        free = list(range(self.blocks))
        for column in range(self.tables.shape[1]):
            for seq, count in enumerate(needed):
                if column < count:
                    self.tables[seq, column] = free.pop()
        self.caches = self._empty_caches()
        self.states = {i: StateCache() for i in range(len(graph.facts.state_layers))}

    def _empty_caches(self) -> dict[int, Any]:
        facts = self.graph.facts
        dtype = facts.dtype if self.graph.stage == "lowered" and "dtype" in facts else "float32"
        return {
            i: make_cache(
                self.blocks, layer.kv_heads, self.block_size, layer.head_dim, layer.dtype_or(dtype), layer.v_dim
            )
            for i, layer in enumerate(facts.kv_layers)
        }

    def inputs(self, counts: Sequence[int], *, last_rows_only: bool = False) -> dict[str, Any]:
        """Returns the graph's inputs for the next counts[i] tokens of sequence i; one with 0 is not in the batch.

        Logits are computed for every token, or with last_rows_only for each sequence's last token. Raises GraphError if
        a sequence has too few tokens.
        """
        present = [i for i, n in enumerate(counts) if n > 0]
        spans = [(self.done[i], self.done[i] + counts[i]) for i in present]
        for i, (_, end) in zip(present, spans, strict=True):
            if end > len(self.sequences[i]):
                raise GraphError(f"sequence {i} has {len(self.sequences[i])} tokens, {end} were asked for")
        ids = [t for i, (a, b) in zip(present, spans, strict=True) for t in self.sequences[i][a:b]]
        positions = np.concatenate([np.arange(a, b) for a, b in spans])
        owner = np.repeat(present, [b - a for a, b in spans])
        slots = self.tables[owner, positions // self.block_size] * self.block_size + positions % self.block_size
        starts = np.cumsum([0, *(b - a for a, b in spans)])
        arrays = {
            "token_ids": ids,
            "positions": positions,
            "seq_starts": starts,
            "context_lens": [b for _, b in spans],
            "block_tables": self.tables[present],
            "slots": slots,
            "logit_rows": starts[1:] - 1 if last_rows_only else np.arange(len(ids)),
            "state_slots": [len(self.sequences) - 1 - i for i in present],
            "prompt_lens": [len(self.sequences[i]) for i in present],
        }
        named: dict[str, Any] = {name: torch.from_numpy(np.array(a, np.int32)) for name, a in arrays.items()}
        if self.features is not None:
            pieces = [self.features[i][a:b] for i, (a, b) in zip(present, spans, strict=True)]
            named[FEATURES] = torch.cat(pieces)
        named |= {f"kv_cache.{layer}": cache for layer, cache in self.caches.items()}
        named |= {f"state.{layer}": states for layer, states in self.states.items()}
        return {v.name: named[v.name] for v in self.graph.inputs}

    def step(self, counts: Sequence[int], weights: Weights) -> list[torch.Tensor]:
        """Computes counts[i] more tokens of sequence i. Returns their logits, [counts[i], vocab] per sequence, with the
        columns of a further output of the graph behind them."""
        results: dict[Any, torch.Tensor] = {}
        for value, data in run(self.graph, self.inputs(counts), weights, self.meet):
            if value in self.graph.outputs:
                results[value] = data
            elif value.dtype == "kv" and value.node is not None and value.node.op != "input":
                attrs = value.node.attrs  # The layer is "layer" at stage cached and "kv_layer" at stage lowered.
                self.caches[attrs["layer"] if "layer" in attrs else attrs["kv_layer"]] = data
            elif value.dtype == "state" and value.node is not None and value.node.op != "input":
                self.states[value.node.attrs["state"]] = data
        self.done = [d + n for d, n in zip(self.done, counts, strict=True)]
        return list(torch.split(torch.cat([results[value] for value in self.graph.outputs], -1), list(counts)))


def interpret_ragged(
    graph: Graph,
    sequences: Sequence[Sequence[int]],
    weights: Weights,
    *,
    steps: Sequence[Sequence[int]] | None = None,
    block_size: int = 16,
    features: Sequence[torch.Tensor] | None = None,
) -> list[torch.Tensor]:
    """Returns the logits [len, vocab] of every sequence, as RaggedAdapter.step does.

    `steps` lists for every step the number of tokens that it computes of each sequence. Without `steps`, one step
    computes all tokens. Raises GraphError if tokens are left.
    """
    adapter = RaggedAdapter(graph, sequences, block_size=block_size, features=features)
    plan = [[len(s) for s in sequences]] if steps is None else steps
    pieces = [adapter.step(counts, weights) for counts in plan]
    if adapter.done != [len(s) for s in sequences]:
        raise GraphError(f"the steps compute {adapter.done} tokens of sequences of {[len(s) for s in sequences]}")
    return [torch.cat([piece[i] for piece in pieces]) for i in range(len(sequences))]
