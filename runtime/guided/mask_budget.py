"""What the masks of one completion may cost."""

from __future__ import annotations

PER_MASK_S = 0.010
"""Seconds of a processor that a mask may take, as a mean."""
MAX_S = 0.050
"""What is saved up of quick masks, and so what a single one may take at most."""
SLOW_S = 0.001
"""A mask that takes longer is computed apart from the quick ones."""


class MaskBudget:
    """Seconds of a processor, not of a clock: a busy machine ends nobody's request.

    Nor does one hiccup: where a hypervisor takes a processor away and does not tell, the time counts as used. So one
    mask that is there although it took too much is forgiven, and what was saved up is gone.
    """

    def __init__(self) -> None:
        self.left = MAX_S
        self._forgiven = False
        self._recent = 0.0  # of the last mask, or half of that of the one before, ...

    @property
    def slow(self) -> bool:
        return self._recent > SLOW_S

    def pay(self, seconds: float) -> bool:
        """For one mask that is there. False if that was too much."""
        self._recent = max(seconds, self._recent / 2)
        if seconds > self.left:
            if self._forgiven:
                return False
            self._forgiven = True
            seconds = self.left
        self.left = min(MAX_S, self.left - seconds + PER_MASK_S)
        return True
