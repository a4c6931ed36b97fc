"""Describes the ranks of a parallel engine to an executor that is written in Python, as one of them sees them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class RankGroup:
    """ranks: `_runtime.Ranks`. Rank r is number r % tensor of stage r // tensor. timeout_s: how long a rank waits for
    others in a step. local, here: the number of this rank among those of its machine, and how many these are."""

    ranks: Any
    tensor: int
    stages: int
    timeout_s: float
    local: int
    here: int

    @property
    def rank(self) -> int:
        return int(self.ranks.rank)

    @property
    def size(self) -> int:
        return self.tensor * self.stages

    @property
    def number(self) -> int:
        """The number of this rank in its stage."""
        return self.rank % self.tensor

    @property
    def stage(self) -> int:
        return self.rank // self.tensor

    @property
    def gives_logits(self) -> bool:
        """Whether rank 0 gets the logits of a step from this rank: the first one of the last stage."""
        return self.stage == self.stages - 1 and self.number == 0
