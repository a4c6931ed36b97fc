"""Defines in plain numpy which positions the queries of a prompt see in sparse prefill.

A prompt is cut into blocks of as many positions as a block of the KV cache has, B. The queries of a block choose
together, for each KV head, N / B blocks of keys, their own block among them. They keep the first block, the block
before their own and their own. Of the others they take those on which attention would lie most:

    mass of a block of keys = sum over its keys, and over the heads of the group, of softmax(score(mean query, key))

The softmax goes over all keys before the block. The mean of a head's queries in the block stands for them. Block-sparse
attention that estimates by mean queries is that of MInference (Jiang et al. 2024, arXiv 2407.02490) and FlexPrefill
(Lai et al. 2025, arXiv 2502.20766), which take means of keys too. Here keys stay as they are: one key that many queries
look for would vanish in the mean of its block.

A block before which there are fewer than N / B sees everything, and so does what is behind the prompt's whole blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tensorwright.engine_format.kv_cache import SPARSE_KEPT_BLOCKS
from tensorwright.errors import GraphError
from tensorwright.plugins.paged_attention.quantize import quantize_heads, restore_heads
from tensorwright.plugins.rounding import round_to


def sparse_end(prompt: int, block: int) -> int:
    """Returns the end of the positions of a prompt that choose what they see: of its whole blocks.
    runtime/core/base/sparse_prefill.h has the same rule."""
    return prompt // block * block


@dataclass(frozen=True)
class ChoiceRule:
    """How blocks of queries choose. budget: the most positions that a query sees. block: the positions of a block.
    q_dtype: the type that means of queries are rounded to."""

    budget: int
    block: int
    scale: float
    softcap: float
    q_dtype: str

    def chosen(self, q: np.ndarray, k: np.ndarray, levels: int | None = None) -> np.ndarray:
        """Returns the indices, ascending, of the blocks that a block of queries sees.

        q: [B, group, D], the queries of one KV head. k: [b * B, D], the keys of all blocks before them; b is their own
        index. levels: how finely queries are rounded, for a cache of integers.
        """
        own, take = len(k) // self.block, self.budget // self.block
        if own + 1 <= take:
            return np.arange(own + 1)
        mean = round_to(q.astype(np.float64).mean(0).astype(np.float32), self.q_dtype)
        if levels is not None:
            mean = restore_heads(*quantize_heads(mean, levels))
        score = self.scale * (mean.astype(np.float64) @ k.astype(np.float64).T)
        if self.softcap:
            score = self.softcap * np.tanh(score / self.softcap)
        weight = np.exp(score - score.max(axis=1, keepdims=True))
        weight /= weight.sum(axis=1, keepdims=True)
        mass = weight.reshape(len(weight), own, self.block).sum((0, 2))
        others = 1 + np.argsort(-mass[1 : own - 1], kind="stable")[: take - SPARSE_KEPT_BLOCKS]
        return np.sort(np.concatenate([others, [0, own - 1, own]]))

    def shown(self, q: np.ndarray, k: np.ndarray, first: int, prompt: int, levels: int | None = None) -> np.ndarray:
        """Returns which keys the queries of a step may see: bool [Hkv, Q, L].

        q: [Q, H, D], at positions first + i; k: [L, Hkv, D]; prompt: how many tokens of the sequence are its prompt.
        Raises GraphError for a step that begins or ends within a block of queries that choose.
        """
        kv_heads = k.shape[1]
        shown = np.ones((kv_heads, len(q), len(k)), bool)
        end = sparse_end(prompt, self.block)
        for begin in range(first // self.block * self.block, min(end, first + len(q)), self.block):
            if begin < self.budget:
                continue
            rows = slice(begin - first, begin - first + self.block)
            if rows.start < 0 or rows.stop > len(q):
                raise GraphError(
                    f"paged_attention: a step must hold whole blocks of {self.block} queries of a sparse prompt, and "
                    f"this one holds positions {first} to {first + len(q) - 1}"
                )
            by_head = q[rows].reshape(self.block, kv_heads, -1, q.shape[2])
            for head in range(kv_heads):
                blocks = self.chosen(by_head[:, head], k[:begin, head], levels)
                shown[head, rows] = np.isin(np.arange(len(k)) // self.block, blocks)
        return shown
