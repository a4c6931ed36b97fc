"""Shares the costs of a model among devices that split every matrix (tensor parallel: Shoeybi et al. 2019, section 3).

A device holds a part of every matrix and of the heads. After attention and after the MLP the devices add up their rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tensorwright.errors import InvalidOptionError
from tensorwright.insight.devices.device import Device
from tensorwright.insight.estimate.costs import MATRICES, CacheGroup, Costs, StepMemory, Work

SUMS_OF_A_LAYER = 2
_SPLIT = (*MATRICES, "attention", "carried")
"""Parts of the names of instructions that are split; the others run on every device."""


class SharedCosts:
    """The costs of the fullest of `count` devices. kv_heads: the heads of K and V, which are split as far as they go,
    and whole; a cache of latents has one, which every device holds."""

    def __init__(self, costs: Costs, count: int, kv_heads: int):
        self._costs, self._count = costs, count
        self._cache_count = kv_heads / -(-kv_heads // count)
        self.weights_bytes = -(-costs.weights_bytes // count)
        self.block_size, self.max_seq_len = costs.block_size, costs.max_seq_len
        self.state_bytes = -(-costs.state_bytes // count)
        self.groups = tuple(
            CacheGroup(math.ceil(group.block_bytes / self._cache_count), group.window) for group in costs.groups
        )

    def step(self, sequences: Sequence[tuple[int, int]], rows: int) -> list[Work]:
        return [self._part(work) for work in self._costs.step(sequences, rows)]

    def memory(self, tokens: int, rows: int, sequences: int, threads: int) -> StepMemory:
        return self._costs.memory(tokens, rows, sequences, threads)

    def _part(self, work: Work) -> Work:
        if not any(name in work.op for name in _SPLIT):
            return work
        weights = work.weight_bytes / self._count
        others = self._cache_count if "attention" in work.op else self._count
        return replace(
            work,
            bytes=weights + (work.bytes - work.weight_bytes) / others,
            operations=work.operations / self._count,
            weight_bytes=weights,
        )


def sum_seconds(device: Device, count: int, layers: int, width: int, tokens: int, element_bytes: int) -> float:
    """Returns the time in which the devices add up the rows of a step. Raises InvalidOptionError for a device without a
    link.

    Each device sends its rows whole to all others, in one exchange; or it sums a part of them and then sends that, in
    two exchanges with 2 (count - 1) / count of the bytes of the rows, as a ring does too. The shorter one counts.
    """
    if count == 1:
        return 0.0
    if device.link is None:
        raise InvalidOptionError(
            f"tensor_parallel: {device.name} has no link_gb_per_s to others of its kind in the table of devices; give "
            "a device of your own that has one (docs/estimate.md)"
        )
    moved = (count - 1) * tokens * width * element_bytes
    whole = device.link_seconds + moved / device.link
    parts = 2 * device.link_seconds + 2 * moved / count / device.link
    return SUMS_OF_A_LAYER * layers * min(whole, parts)
