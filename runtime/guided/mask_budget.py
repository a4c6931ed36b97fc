"""What the masks of one completion may cost."""

from __future__ import annotations

PER_MASK_S = 0.010
"""Seconds of a processor that a mask may take, as a mean."""
MOST_S = 0.050
"""What is saved up of quick masks, and so what a single one may take at most."""
SLOW_S = 0.001
"""A mask that takes longer is computed apart from the quick ones."""


class MaskBudget:
    """Seconds of a processor, not of a clock: a busy machine ends nobody's request."""

    def __init__(self) -> None:
        self.left = MOST_S
        self._recent = 0.0  # of the last mask, or half of that of the one before, ...

    @property
    def slow(self) -> bool:
        return self._recent > SLOW_S

    def pay(self, seconds: float) -> bool:
        """For one mask. False if that was too much."""
        self._recent = max(seconds, self._recent / 2)
        enough = seconds <= self.left
        self.left = min(MOST_S, self.left - seconds + PER_MASK_S)
        return enough
