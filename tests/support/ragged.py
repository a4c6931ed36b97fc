"""Sequences on scattered KV blocks, and the steps that run several of them together through a CpuExecutor."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorwright.engine_format.kv_cache import step_end


class Ragged:
    """Keeps every sequence's length and block tables. Blocks are handed out shuffled, so that none lie in a row."""

    def __init__(self, executor: Any, blocks: int, max_tokens: int = 4096, max_seqs: int = 16, seed: int = 0):
        self.executor = executor
        facts = executor.facts()
        self.block_size: int = facts["block_size"]
        self.groups = len(facts["block_bytes"])
        self.has_states = facts["state_bytes"] > 0
        self.stop: int = facts["chunk_stop"]
        slots = max_seqs if self.has_states else 0
        executor.allocate([blocks] * self.groups, max_tokens, max_tokens, max_seqs, slots)
        rng = np.random.default_rng(seed)
        self.free_slots = [int(slot) for slot in np.random.default_rng(seed).permutation(slots)]
        self.state_slots: dict[str, int] = {}
        self.free = [list(rng.permutation(blocks)) for _ in range(self.groups)]
        self.tables: dict[str, list[list[int]]] = {}
        self.lengths: dict[str, int] = {}

    def arguments(self, feeds: list[tuple[str, list[int]]], rows: str = "all") -> dict[str, Any]:
        """One step's arguments: feeds are (sequence, its next tokens); rows is "all", "last" or "none"."""
        ids: list[int] = []
        positions: list[int] = []
        starts, contexts, wanted = [0], list[int](), list[int]()
        slots: list[list[int]] = [[] for _ in range(self.groups)]
        for name, tokens in feeds:
            begin = self.lengths.get(name, 0)
            end = begin + len(tokens)
            tables = self.tables.setdefault(name, [[] for _ in range(self.groups)])
            if self.has_states and name not in self.state_slots:
                self.state_slots[name] = self.free_slots.pop()
            for group, table in enumerate(tables):
                while len(table) * self.block_size < end:
                    table.append(int(self.free[group].pop()))
                slots[group] += [
                    table[p // self.block_size] * self.block_size + p % self.block_size for p in range(begin, end)
                ]
            ids += tokens
            positions += range(begin, end)
            starts.append(len(ids))
            contexts.append(end)
            if rows == "last":
                wanted.append(len(ids) - 1)
        if rows == "all":
            wanted = list(range(len(ids)))
        return {
            "token_ids": ids,
            "positions": positions,
            "seq_starts": starts,
            "context_lens": contexts,
            "logit_rows": wanted,
            "groups": [(self._table(feeds, group), slots[group]) for group in range(self.groups)],
            "state_slots": [self.state_slots[name] for name, _ in feeds] if self.has_states else [],
        }

    def _table(self, feeds: list[tuple[str, list[int]]], group: int) -> np.ndarray:
        tables = [self.tables[name][group] for name, _ in feeds]
        result = np.full((len(feeds), max((len(t) for t in tables), default=0)), -1, np.int32)
        for row, table in enumerate(tables):
            result[row, : len(table)] = table
        return result

    def step(self, feeds: list[tuple[str, list[int]]], rows: str = "all") -> np.ndarray:
        """Runs a step; logits [rows, vocab] float32."""
        arguments = self.arguments(feeds, rows)
        logits = self.executor.step(**arguments)
        for name, tokens in feeds:
            self.lengths[name] = self.lengths.get(name, 0) + len(tokens)
        return logits

    def release(self, name: str) -> None:
        """Gives the blocks back; the next sequence gets them first."""
        for group, table in enumerate(self.tables.pop(name)):
            self.free[group] += table
        if self.has_states:
            self.free_slots.append(self.state_slots.pop(name))
        del self.lengths[name]

    def alone(self, name: str, ids: list[int], chunk: int = 0) -> np.ndarray:
        """All logits [len(ids), vocab] of one sequence fed by itself, in chunks of `chunk` tokens (0: all at once)."""
        rows, size = [], chunk or len(ids)
        while (begin := self.lengths.get(name, 0)) < len(ids):
            end = step_end(begin, min(len(ids), begin + size), self.stop)
            rows.append(self.step([(name, ids[begin:end])]))
        return np.concatenate(rows)
